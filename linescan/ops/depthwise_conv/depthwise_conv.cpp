#include "linescan/ops/depthwise_conv/depthwise_conv.h"

#include <initializer_list>

#include "linescan/ops/expect.h"

namespace linescan {
namespace {

constexpr std::string_view kName = "depthwise_conv";

// Threads move four elements at once.
bool aligned(std::initializer_list<const TensorView*> tensors) {
  for (const TensorView* tensor : tensors)
    if (reinterpret_cast<std::uintptr_t>(tensor->data) % (4 * size_of(tensor->dtype)) != 0)
      return false;
  return true;
}

}  // namespace

DepthwiseConvSize size_of(const DepthwiseConvProblem& p) {
  const Shape& x = p.x.shape;
  return {x[0], x[1], x[2], x[3], p.x.dtype, aligned({&p.x, &p.out}), p.silu};
}

DepthwiseConvSize size_of(const DepthwiseConvProblem& p, const DepthwiseConvGradients& g) {
  DepthwiseConvSize size = size_of(p);
  size.vectors = aligned({&p.x, &g.out, &g.x});
  return size;
}

void check(const DepthwiseConvProblem& p) {
  if (p.x.shape.rank() != 4 || p.x.shape[3] < 1)
    throw_error<InvalidArgument>(
        "{}: x has shape {}, expected [batch, height, width, channels] with a channel", kName,
        to_string(p.x.shape));
  if (p.x.dtype == DType::kFloat64)
    throw_error<Unsupported>(
        "{}: x is float64, which GPU kernels do not have; expected float32, float16 or bfloat16",
        kName);
  const int64_t channels = p.x.shape[3];
  expect_shape(kName, "weight", p.weight, {channels, 3, 3}, "[channels, 3, 3]");
  expect_dtype(kName, "weight", p.weight, DType::kFloat32, "parameters are");
  if (!p.bias) return;
  expect_shape(kName, "bias", p.bias, {channels}, "[channels]");
  expect_dtype(kName, "bias", p.bias, DType::kFloat32, "parameters are");
}

}  // namespace linescan
