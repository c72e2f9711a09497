#include "linescan/ops/causal_conv1d/causal_conv1d.h"

#include "linescan/ops/causal_conv1d/sequence.h"
#include "linescan/ops/expect.h"

namespace linescan {
namespace {

constexpr std::string_view kName = "causal_conv1d";

// Threads of a GPU move four neighbouring channels at once.
bool in_packs(const TensorView& tensor) {
  if (!tensor) return true;
  const auto fits = [](int64_t stride) { return stride % 4 == 0; };
  return tensor.strides[2] == 1 && fits(tensor.strides[0]) && fits(tensor.strides[1]) &&
         reinterpret_cast<std::uintptr_t>(tensor.data) % (4 * size_of(tensor.dtype)) == 0;
}

}  // namespace

CausalConv1dSize size_of(const CausalConv1dProblem& p) {
  const Shape& x = p.x.shape;
  return {.batch = x[0],
          .length = x[1],
          .channels = x[2],
          .width = p.weight.shape[1],
          .sequences = p.offsets ? p.sequences : x[0],
          .dtype = p.x.dtype,
          .silu = p.silu};
}

CausalConv1dGpuSize gpu_size_of(const CausalConv1dProblem& p, const CausalConv1dGradients& g) {
  const bool vectors = in_packs(p.x) && in_packs(p.out) && in_packs(g.out) && in_packs(g.x);
  return {size_of(p), vectors && p.x.shape[2] % 4 == 0};
}

void check(const CausalConv1dProblem& p, const char* op, const char* state) {
  const Shape& x = p.x.shape;
  if (x.rank() != 3)
    throw_error<InvalidArgument>("{}: x has shape {}, expected [batch, length, channels]", op,
                                 to_string(x));
  const Shape& weight = p.weight.shape;
  if (weight.rank() != 2 || weight[0] != x[2] || weight[1] < kMinConvWidth ||
      weight[1] > kMaxConvWidth)
    throw_error<InvalidArgument>(
        "{}: weight has shape {}, expected [{}, width] with width {} to {}", op, to_string(weight),
        x[2], kMinConvWidth, kMaxConvWidth);
  const DType data = p.x.dtype, parameter = accumulator_of(data);
  expect_dtype(op, "weight", p.weight, parameter, kParameterType);
  if (p.bias) {
    expect_shape(op, "bias", p.bias, {x[2]}, "[channels]");
    expect_dtype(op, "bias", p.bias, parameter, kParameterType);
  }
  if (p.offsets && x[0] != 1)
    throw_error<InvalidArgument>("{}: x has batch {}, expected 1 with packed sequences", op, x[0]);
  if (p.initial_state) {
    expect_shape(op, state, p.initial_state, {p.offsets ? p.sequences : x[0], x[2], weight[1] - 1},
                 "[sequences, channels, width - 1]");
    expect_dtype(op, state, p.initial_state, data, "the type of x");
  }
}

void check_gpu(const CausalConv1dProblem& p) {
  if (p.x.dtype == DType::kFloat64)
    throw_error<Unsupported>(
        "{}: x is float64, GPUs take float32, float16 and bfloat16 (use the CPU)", kName);
  constexpr int64_t kLimit = int64_t{1} << 28;  // channels are counted in 32 bits, times width
  if (p.x.shape[2] >= kLimit)
    throw_error<Unsupported>("{}: x has {} channels, GPUs take less than {}", kName, p.x.shape[2],
                             kLimit);
}

}  // namespace linescan
