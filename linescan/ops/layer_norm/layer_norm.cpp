#include "linescan/ops/layer_norm/layer_norm.h"

#include <initializer_list>

#include "linescan/ops/expect.h"

namespace linescan {
namespace {

constexpr std::string_view kName = "layer_norm";

bool aligned(std::initializer_list<const TensorView*> tensors) {
  for (const TensorView* tensor : tensors)
    if (reinterpret_cast<std::uintptr_t>(tensor->data) % 16 != 0) return false;
  return true;
}

void expect_no_float64(std::string_view argument, const TensorView& tensor) {
  if (tensor.dtype == DType::kFloat64)
    throw_error<Unsupported>(
        "{}: {} is float64, which GPU kernels do not have; expected float32, "
        "float16 or bfloat16",
        kName, argument);
}

}  // namespace

LayerNormSize size_of(const LayerNormProblem& p) {
  LayerNormSize size;
  size.rows = p.x.shape[0];
  size.channels = p.x.shape[1];
  size.dtype = p.x.dtype;
  size.out_dtype = p.out ? p.out.dtype : p.x.dtype;
  size.vectors = aligned({&p.x, &p.out, &p.weight, &p.bias});
  return size;
}

LayerNormSize size_of(const LayerNormProblem& p, const LayerNormGradients& g) {
  LayerNormSize size = size_of(p);
  size.out_dtype = g.out.dtype;
  size.vectors = aligned({&p.x, &p.weight, &g.out, &g.skip, &g.x});
  size.skip = static_cast<bool>(g.skip);
  return size;
}

void check(const LayerNormProblem& p) {
  if (p.x.shape.rank() != 2 || p.x.shape[1] < 1)
    throw_error<InvalidArgument>("{}: x has shape {}, expected [rows, channels] with a channel",
                                 kName, to_string(p.x.shape));
  if (!(p.epsilon >= 0))
    throw_error<InvalidArgument>("{}: epsilon is {}, expected 0 or more", kName, p.epsilon);
  expect_no_float64("x", p.x);
  if (p.out) expect_no_float64("out", p.out);
  for (const auto& [name, tensor] : {std::pair{"weight", &p.weight}, std::pair{"bias", &p.bias}}) {
    if (!*tensor) continue;
    expect_shape(kName, name, *tensor, {p.x.shape[1]}, "[channels]");
    expect_dtype(kName, name, *tensor, DType::kFloat32, "parameters are");
  }
}

}  // namespace linescan
