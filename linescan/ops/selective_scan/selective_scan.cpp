#include "linescan/ops/selective_scan/selective_scan.h"

#include <string_view>

#include "linescan/ops/expect.h"

namespace linescan {
namespace {

constexpr std::string_view kName = "selective_scan";

void check_factor(std::string_view op, std::string_view argument, const TensorView& factor,
                  const Shape& u, int64_t states) {
  if (factor.shape.rank() == 2) {
    expect_shape(op, argument, factor, {u[1], states}, "[channels, states]");
    return;
  }
  if (factor.shape.rank() != 4)
    throw_error<InvalidArgument>(
        "{}: {} has shape {}, expected [batch, groups, states, length], [batch, states, length] or "
        "[channels, states]",
        op, argument, to_string(factor.shape));
  const int64_t groups = factor.shape[1];
  expect_shape(op, argument, factor, {u[0], groups, states, u[2]},
               "[batch, groups, states, length]");
  if (groups < 1 || u[1] % groups != 0)
    throw_error<InvalidArgument>("{}: {} has {} groups, which do not divide {} channels", op,
                                 argument, groups, u[1]);
}

}  // namespace

SelectiveScanSize size_of(const SelectiveScanProblem& p) {
  SelectiveScanSize size;
  size.batch = p.u.shape[0];
  size.channels = p.A.shape[0];
  size.length = p.u.shape[2];
  size.states = p.A.shape[1];
  size.constant_B = p.B.shape.rank() == 2;
  size.constant_C = p.C.shape.rank() == 2;
  size.groups = !size.constant_B ? p.B.shape[1] : !size.constant_C ? p.C.shape[1] : 1;
  size.dtype = p.u.dtype;
  size.out_dtype = p.out ? p.out.dtype : p.u.dtype;
  size.softplus = p.delta_softplus;
  size.gate = static_cast<bool>(p.z);
  size.kept_states = static_cast<bool>(p.states);
  size.ordered = p.order != nullptr;
  size.length_last = !size.ordered && (size.length == 1 || p.u.strides[2] == 1);
  return size;
}

void check(const SelectiveScanProblem& p, const char* op, const char* state) {
  const Shape& u = p.u.shape;
  if (u.rank() != 3)
    throw_error<InvalidArgument>("{}: u has shape {}, expected [batch, channels, length]", op,
                                 to_string(u));
  if (p.A.shape.rank() != 2 || p.A.shape[0] != u[1] || p.A.shape[1] < 1)
    throw_error<InvalidArgument>("{}: A has shape {}, expected [{}, states] with states >= 1", op,
                                 to_string(p.A.shape), u[1]);
  const int64_t states = p.A.shape[1];
  const DType data = p.u.dtype, parameter = accumulator_of(data);

  expect_shape(op, "delta", p.delta, u, "[batch, channels, length]");
  expect_dtype(op, "delta", p.delta, data, "the type of u");
  check_factor(op, "B", p.B, u, states);
  check_factor(op, "C", p.C, u, states);
  if (p.B.shape.rank() == 4 && p.C.shape.rank() == 4 && p.B.shape[1] != p.C.shape[1])
    throw_error<InvalidArgument>("{}: C has {} groups, expected {} as B", op, p.C.shape[1],
                                 p.B.shape[1]);
  expect_dtype(op, "B", p.B, data, "the type of u");
  expect_dtype(op, "C", p.C, data, "the type of u");
  expect_dtype(op, "A", p.A, parameter, kParameterType);
  for (const auto& [name, tensor] :
       {std::pair{"D", &p.D}, std::pair{"delta_bias", &p.delta_bias}}) {
    if (!*tensor) continue;
    expect_shape(op, name, *tensor, {u[1]}, "[channels]");
    expect_dtype(op, name, *tensor, parameter, kParameterType);
  }
  if (p.z) {
    expect_shape(op, "z", p.z, u, "[batch, channels, length]");
    expect_dtype(op, "z", p.z, data, "the type of u");
  }
  if (p.initial_state) {
    expect_shape(op, state, p.initial_state, {u[0], u[1], states}, "[batch, channels, states]");
    expect_dtype(op, state, p.initial_state, parameter, kParameterType);
  }
}

void check_gpu(const SelectiveScanProblem& p) {
  for (const auto& [name, tensor] : {std::pair{"A", &p.A},
                                     {"D", &p.D},
                                     {"delta_bias", &p.delta_bias},
                                     {"initial_state", &p.initial_state},
                                     {"last_state", &p.last_state}})
    if (*tensor) expect_contiguous(kName, name, *tensor);
  if (p.states) expect_shape(kName, "states", p.states, {gpu_kept_states(size_of(p))}, "[kept]");
  if (p.u.dtype == DType::kFloat64)
    throw_error<Unsupported>(
        "{}: u is float64, GPUs take float32, float16 and bfloat16 (use the CPU)", kName);
  check_gpu_counts(size_of(p));
}

}  // namespace linescan
