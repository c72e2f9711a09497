#include "linescan/ops/ss2d/ss2d.h"

#include <cstdint>
#include <string_view>

#include "linescan/ops/expect.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan {
namespace {

constexpr std::string_view kName = "ss2d";

void expect_even_rows(std::string_view argument, const TensorView& tensor) {
  const Shape &shape = tensor.shape, &strides = tensor.strides;
  if (shape[2] <= 1 || shape[3] < 1 || strides[2] == shape[3] * strides[3]) return;
  throw_error<InvalidArgument>(
      "{}: {} has strides {}, expected rows that follow each other: stride of height = width * "
      "stride of width",
      kName, argument, to_string(strides));
}

}  // namespace

Ss2dSize size_of(const Ss2dProblem& p) {
  Ss2dSize size;
  size.batch = p.x.shape[0];
  size.channels = p.x.shape[1];
  size.height = p.x.shape[2];
  size.width = p.x.shape[3];
  size.states = p.A_log.shape[1];
  size.rank = p.dt_weight.shape[2];
  size.routes = p.route_count;
  size.dtype = p.x.dtype;
  size.out_dtype = p.out ? p.out.dtype : p.x.dtype;
  size.kept_states = static_cast<bool>(p.states);
  size.channels_last = p.x.strides[1] == 1 || size.channels == 1;
  return size;
}

Ss2dSize size_of(const Ss2dProblem& problem, const Ss2dGradients& gradients) {
  Ss2dSize size = size_of(problem);
  size.out_dtype = gradients.out.dtype;
  return size;
}

int64_t pixel_stride(const TensorView& planes) {
  // A plane of one column has its pixels where its rows are.
  return planes.strides[planes.shape[3] > 1 ? 3 : 2];
}

bool has_aligned_pairs(const Ss2dProblem& p) {
  const Ss2dSize size = size_of(p);
  const auto even = [](auto... values) { return ((values % 2 == 0) && ...); };
  const auto aligned = [](const TensorView& tensor) {
    return reinterpret_cast<std::uintptr_t>(tensor.data) % (2 * size_of(tensor.dtype)) == 0;
  };
  return p.x.strides[1] == 1 && even(size.channels, p.x.strides[0], pixel_stride(p.x)) &&
         even(size.record()) && aligned(p.x) && aligned(p.projection);
}

void check(const Ss2dProblem& p) {
  const Shape& x = p.x.shape;
  if (x.rank() != 4)
    throw_error<InvalidArgument>("{}: x has shape {}, expected [batch, channels, height, width]",
                                 kName, to_string(x));
  if (p.route_count < 1)
    throw_error<InvalidArgument>("{}: routes is empty, expected at least one route", kName);
  for (int64_t k = 0; k < p.route_count; ++k)
    if (p.routes[k] < 0 || p.routes[k] >= kRouteCodes)
      throw_error<InvalidArgument>("{}: routes[{}] is {}, expected four bits, 0 to {}", kName, k,
                                   p.routes[k], kRouteCodes - 1);
  const int64_t K = p.route_count, channels = x[1];
  const DType data = p.x.dtype, parameter = accumulator_of(data);

  const Shape& A = p.A_log.shape;
  if (A.rank() != 2 || A[0] != K * channels || A[1] < 1)
    throw_error<InvalidArgument>(
        "{}: A_log has shape {}, expected [{}, states] = [routes * channels, states], states >= 1",
        kName, to_string(A), K * channels);
  const Shape& W = p.dt_weight.shape;
  if (W.rank() != 3 || W[0] != K || W[1] != channels || W[2] < 1)
    throw_error<InvalidArgument>(
        "{}: dt_proj_weight has shape {}, expected [{}, {}, rank] = [routes, channels, rank], rank "
        ">= 1",
        kName, to_string(W), K, channels);
  const int64_t record = W[2] + 2 * A[1];
  expect_shape(kName, "projection", p.projection, {x[0], x[2] * x[3], K * record},
               "[batch, pixels, routes * (rank + 2 * states)]");
  expect_shape(kName, "dt_proj_bias", p.dt_bias, {K, channels}, "[routes, channels]");
  expect_shape(kName, "D", p.D, {K * channels}, "[routes * channels]");
  expect_dtype(kName, "projection", p.projection, data, "the type of x");
  if (p.dt_weight.dtype != data)
    expect_dtype(kName, "dt_proj_weight", p.dt_weight, parameter, "the type of x, or float32");
  expect_dtype(kName, "dt_proj_bias", p.dt_bias, parameter, kParameterType);
  expect_dtype(kName, "A_log", p.A_log, parameter, kParameterType);
  expect_dtype(kName, "D", p.D, parameter, kParameterType);
  expect_even_rows("x", p.x);
  if (p.out) expect_even_rows("out", p.out);
}

void check_gpu(const Ss2dProblem& p) {
  if (p.x.dtype == DType::kFloat64)
    throw_error<Unsupported>(
        "{}: x is float64, GPUs take float32, float16 and bfloat16 (use the CPU)", kName);
  check_gpu_counts(size_of(p));
  if (p.states) expect_shape(kName, "states", p.states, {gpu_kept_states(size_of(p))}, "[kept]");
}

}  // namespace linescan
