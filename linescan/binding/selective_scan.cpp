// selective_scan for LibTorch: schema, tensor -> problem, autograd, registration.

#include "linescan/binding/selective_scan.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "linescan/base/error.h"
#include "linescan/binding/autocast.h"
#include "linescan/binding/cpu_plan.h"
#include "linescan/binding/gpu_scans.h"
#include "linescan/binding/tensors.h"
#include "linescan/ops/expect.h"
#include "linescan/ops/selective_scan/selective_scan.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Gradients9 =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// ---- Schema ------------------------------------------------------------------------------------

TORCH_LIBRARY_FRAGMENT(linescan, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "selective_scan(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, "
      "Tensor? z=None, Tensor? delta_bias=None, Tensor? initial_state=None, "
      "bool delta_softplus=False, ScalarType? out_dtype=None) -> (Tensor out, Tensor last_state)",
      tags);
  // The same for training: `states` is what a GPU's backward pass need not find again.
  m.def(
      "selective_scan_kept(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D, "
      "Tensor? z, Tensor? delta_bias, Tensor? initial_state, bool delta_softplus, "
      "ScalarType? out_dtype) -> (Tensor out, Tensor last_state, Tensor states)",
      tags);
  m.def(
      "selective_scan_backward(Tensor? grad_out, Tensor? grad_last_state, Tensor u, Tensor delta, "
      "Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? delta_bias, "
      "Tensor? initial_state, bool delta_softplus, Tensor? states=None) -> (Tensor u, "
      "Tensor delta, Tensor A, Tensor B, Tensor C, Tensor D, Tensor z, Tensor delta_bias, Tensor "
      "initial_state)",
      tags);
  m.def(
      "selective_scan_step(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C, Tensor? D=None, "
      "Tensor? z=None, Tensor? delta_bias=None, bool delta_softplus=False, *, Tensor(a!) state) "
      "-> Tensor",
      tags);
}

namespace {

constexpr const char *kName = "selective_scan", *kStepName = "selective_scan_step";

// ---- Tensors to problem ------------------------------------------------------------------------

// B and C without groups have one.
Tensor with_groups(const Tensor& factor) {
  return factor.dim() == 3 ? factor.unsqueeze(1) : factor;
}

// The tensors of a call, kept alive beside the views on them. The operator wants parameters and states
// contiguous; anything else is made so.
struct Call {
  Tensor A, B, C;
  OptionalTensor D, delta_bias, initial_state;
  SelectiveScanProblem problem;

  Call(const Tensor& u, const Tensor& delta, const Tensor& A_in, const Tensor& B_in,
       const Tensor& C_in, const OptionalTensor& D_in, const OptionalTensor& z,
       const OptionalTensor& delta_bias_in, const OptionalTensor& initial_state_in,
       bool delta_softplus, const char* op = kName, const char* state = "initial_state")
      : A(A_in.contiguous()),
        B(with_groups(B_in)),
        C(with_groups(C_in)),
        D(contiguous(D_in)),
        delta_bias(contiguous(delta_bias_in)),
        initial_state(contiguous(initial_state_in)) {
    const auto view = [&](const char* argument, const auto& tensor) {
      expect_devices(op, u.device(), {{argument, tensor}});
      return view_of(op, argument, tensor);
    };
    problem.u = view("u", u);
    problem.delta = view("delta", delta);
    problem.A = view("A", A);
    problem.B = view("B", B);
    problem.C = view("C", C);
    problem.D = view("D", D);
    problem.z = view("z", z);
    problem.delta_bias = view("delta_bias", delta_bias);
    problem.initial_state = view(state, initial_state);
    problem.delta_softplus = delta_softplus;
    check(problem, op, state);
  }
};

// The call of a step: a sequence of length 1 whose state comes and goes in one place.
Call step_call(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
               const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
               const OptionalTensor& delta_bias, bool delta_softplus, const Tensor& state) {
  if (u.dim() != 2)
    throw_error<InvalidArgument>("{}: u has {} dimensions, expected [batch, channels]", kStepName,
                                 u.dim());
  // [channels, states] factors stay; varying ones have a batch dimension that equals u's, and two
  // dimensions more or one.
  const auto in_time = [](const Tensor& tensor) { return tensor.unsqueeze(-1); };
  const auto factor = [&](const Tensor& tensor) {
    const bool constant =
        tensor.dim() == 2 && tensor.size(0) == u.size(1) && tensor.size(0) != u.size(0);
    return constant ? tensor : in_time(tensor);
  };
  Call call(in_time(u), in_time(delta), A, factor(B), factor(C), D,
            given(z) ? OptionalTensor(in_time(*z)) : std::nullopt, delta_bias, state,
            delta_softplus, kStepName, "state");
  expect_own_places(kStepName, "state", view_of(kStepName, "state", state));
  call.problem.last_state = call.problem.initial_state;
  return call;
}

void check_gradients(const Tensor& u, const Tensor& A, const OptionalTensor& grad_out,
                     const OptionalTensor& grad_last_state, const OptionalTensor& states) {
  expect_devices(
      kName, u.device(),
      {{"grad_out", grad_out}, {"grad_last_state", grad_last_state}, {"states", states}});
  if (given(grad_out)) expect_sizes(kName, "grad_out", *grad_out, u.sizes());
  if (!given(grad_last_state)) return;
  expect_sizes(kName, "grad_last_state", *grad_last_state, {u.size(0), u.size(1), A.size(1)});
  const TensorView view = view_of(kName, "grad_last_state", *grad_last_state);
  expect_dtype(kName, "grad_last_state", view, *dtype_of(parameter_type(u)), kParameterType);
}

std::tuple<Tensor, Tensor> empty_results(const Tensor& u, const Tensor& A,
                                         std::optional<at::ScalarType> out_dtype) {
  const at::ScalarType state = parameter_type(u);
  return {
      empty_as(u, out_dtype.value_or(u.scalar_type())),
      at::empty_symint({u.sym_size(0), u.sym_size(1), A.sym_size(1)}, u.options().dtype(state))};
}

void run_forward(const SelectiveScanProblem& problem, const Tensor& u) {
  if (u.is_cuda()) return gpu_scans().forward(problem, u);
  with_cpu_plan(problem, Pass::kForward, [&](const auto&... how) { forward(problem, how...); });
}

void run_backward(const SelectiveScanProblem& problem, const SelectiveScanGradients& gradients,
                  const Tensor& u) {
  if (u.is_cuda()) return gpu_scans().backward(problem, gradients, u);
  with_cpu_plan(problem, Pass::kBackward,
                [&](const auto&... how) { backward(problem, gradients, how...); });
}

// What the forward pass keeps for the backward pass on GPUs.
Tensor empty_states(const Tensor& u, const Tensor& A, const Tensor& B, const Tensor& C,
                    const OptionalTensor& z, std::optional<at::ScalarType> out_dtype) {
  const at::TensorOptions options = u.options().dtype(at::kFloat);
  const std::optional<DType> data = dtype_of(u.scalar_type());
  const std::optional<DType> out = dtype_of(out_dtype.value_or(u.scalar_type()));
  if (!u.is_cuda() || !data || !out) return at::empty({0}, options);
  const auto number = [](const c10::SymInt& size) {
    return size.guard_int(__FILE__, __LINE__);  // while tracing: this size only
  };
  const int64_t length = number(u.sym_size(2));
  int64_t groups = 1;
  for (const Tensor& factor : {B, C})
    if (factor.dim() == 4) groups = number(factor.sym_size(1));
  const SelectiveScanSize size = {.batch = number(u.sym_size(0)),
                                  .channels = number(u.sym_size(1)),
                                  .groups = groups,
                                  .length = length,
                                  .states = number(A.sym_size(1)),
                                  .dtype = *data,
                                  .out_dtype = *out,
                                  .gate = z && z->defined(),
                                  .constant_B = B.dim() == 2,
                                  .constant_C = C.dim() == 2,
                                  .length_last = length == 1 || number(u.sym_stride(2)) == 1};
  return at::empty({gpu_kept_states(size)}, options);
}

std::tuple<Tensor, Tensor, Tensor> kept_device(const Tensor& u, const Tensor& delta,
                                               const Tensor& A, const Tensor& B, const Tensor& C,
                                               const OptionalTensor& D, const OptionalTensor& z,
                                               const OptionalTensor& delta_bias,
                                               const OptionalTensor& initial_state,
                                               bool delta_softplus,
                                               std::optional<at::ScalarType> out_dtype) {
  Call call(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus);
  auto [out, last_state] = empty_results(u, A, out_dtype);
  const Tensor states = empty_states(u, A, B, C, z, out_dtype);
  call.problem.out = view_of(kName, "out", out);
  call.problem.last_state = view_of(kName, "last_state", last_state);
  if (states.numel() > 0) call.problem.states = view_of(kName, "states", states);
  run_forward(call.problem, u);
  return {out, last_state, states};
}

std::tuple<Tensor, Tensor> forward_device(const Tensor& u, const Tensor& delta, const Tensor& A,
                                          const Tensor& B, const Tensor& C, const OptionalTensor& D,
                                          const OptionalTensor& z, const OptionalTensor& delta_bias,
                                          const OptionalTensor& initial_state, bool delta_softplus,
                                          std::optional<at::ScalarType> out_dtype) {
  Call call(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus);
  auto [out, last_state] = empty_results(u, A, out_dtype);
  call.problem.out = view_of(kName, "out", out);
  call.problem.last_state = view_of(kName, "last_state", last_state);
  run_forward(call.problem, u);
  return {out, last_state};
}

Gradients9 empty_gradients(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                           const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
                           const OptionalTensor& delta_bias, const OptionalTensor& initial_state) {
  // Sums over the batch are written in row-major order; the others follow their inputs.
  const auto dense = [&](const OptionalTensor& tensor) {
    return given(tensor) ? at::empty_symint(tensor->sym_sizes(), tensor->options())
                         : gradient_like(tensor, u);
  };
  return {gradient_like(u, u),
          gradient_like(delta, u),
          dense(A),
          dense(B),
          dense(C),
          dense(D),
          gradient_like(z, u),
          dense(delta_bias),
          dense(initial_state)};
}

Gradients9 backward_device(const OptionalTensor& grad_out, const OptionalTensor& grad_last_state,
                           const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                           const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
                           const OptionalTensor& delta_bias, const OptionalTensor& initial_state,
                           bool delta_softplus, const OptionalTensor& states) {
  Call call(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus);
  check_gradients(u, A, grad_out, grad_last_state, states);
  call.problem.out = view_of(kName, "grad_out", grad_out);  // its type is part of the problem
  if (states && states->numel() > 0) call.problem.states = view_of(kName, "states", *states);
  auto results = empty_gradients(u, delta, A, B, C, D, z, delta_bias, initial_state);
  auto& [gu, gdelta, gA, gB, gC, gD, gz, gbias, ginitial] = results;
  const Tensor gB_groups = with_groups(gB), gC_groups = with_groups(gC);
  const OptionalTensor upstream_state = contiguous(grad_last_state);
  const auto wanted = [](const TensorView& input, const Tensor& gradient) {
    return input ? view_of(kName, "gradient", gradient) : TensorView{};
  };
  const SelectiveScanProblem& p = call.problem;
  const SelectiveScanGradients gradients{
      .out = view_of(kName, "grad_out", grad_out),
      .last_state = view_of(kName, "grad_last_state", upstream_state),
      .u = wanted(p.u, gu),
      .delta = wanted(p.delta, gdelta),
      .A = wanted(p.A, gA),
      .B = wanted(p.B, gB_groups),
      .C = wanted(p.C, gC_groups),
      .D = wanted(p.D, gD),
      .delta_bias = wanted(p.delta_bias, gbias),
      .z = wanted(p.z, gz),
      .initial_state = wanted(p.initial_state, ginitial)};
  run_backward(p, gradients, u);
  return results;
}

Tensor step_device(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                   const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
                   const OptionalTensor& delta_bias, bool delta_softplus, Tensor& state) {
  Call call = step_call(u, delta, A, B, C, D, z, delta_bias, delta_softplus, state);
  Tensor out = empty_as(u, u.scalar_type());
  const Tensor out_in_time = out.unsqueeze(-1);
  call.problem.out = view_of(kName, "out", out_in_time);
  run_forward(call.problem, u);
  if (!state.is_contiguous()) state.copy_(*call.initial_state);
  count_version(state);
  return out;
}

// ---- Meta: shapes without data, for torch.compile ------------------------------------------------

std::tuple<Tensor, Tensor> forward_meta(const Tensor& u, const Tensor& delta, const Tensor& A,
                                        const Tensor& B, const Tensor& C, const OptionalTensor& D,
                                        const OptionalTensor& z, const OptionalTensor& delta_bias,
                                        const OptionalTensor& initial_state, bool delta_softplus,
                                        std::optional<at::ScalarType> out_dtype) {
  if (sizes_known({u, delta, A, B, C, D, z, delta_bias, initial_state}))
    Call(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus);
  return empty_results(u, A, out_dtype);
}

std::tuple<Tensor, Tensor, Tensor> kept_meta(const Tensor& u, const Tensor& delta, const Tensor& A,
                                             const Tensor& B, const Tensor& C,
                                             const OptionalTensor& D, const OptionalTensor& z,
                                             const OptionalTensor& delta_bias,
                                             const OptionalTensor& initial_state,
                                             bool delta_softplus,
                                             std::optional<at::ScalarType> out_dtype) {
  const auto [out, last_state] =
      forward_meta(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus, out_dtype);
  return {out, last_state, empty_states(u, A, B, C, z, out_dtype)};
}

Gradients9 backward_meta(const OptionalTensor& grad_out, const OptionalTensor& grad_last_state,
                         const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                         const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
                         const OptionalTensor& delta_bias, const OptionalTensor& initial_state,
                         bool delta_softplus, const OptionalTensor& states) {
  if (sizes_known({grad_out, grad_last_state, u, delta, A, B, C, D, z, delta_bias, initial_state,
                   states})) {
    Call(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus);
    check_gradients(u, A, grad_out, grad_last_state, states);
  }
  return empty_gradients(u, delta, A, B, C, D, z, delta_bias, initial_state);
}

Tensor step_meta(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                 const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
                 const OptionalTensor& delta_bias, bool delta_softplus, Tensor& state) {
  if (sizes_known({u, delta, A, B, C, D, z, delta_bias, state}))
    step_call(u, delta, A, B, C, D, z, delta_bias, delta_softplus, state);
  return empty_as(u, u.scalar_type());
}

// ---- Autograd ----------------------------------------------------------------------------------

class SelectiveScanFunction : public torch::autograd::Function<SelectiveScanFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& u, const Tensor& delta, const Tensor& A,
      const Tensor& B, const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
      const OptionalTensor& delta_bias, const OptionalTensor& initial_state, bool delta_softplus,
      std::optional<at::ScalarType> out_dtype) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::selective_scan_kept", "")
                               .typed<decltype(kept_device)>();
    at::AutoDispatchBelowADInplaceOrView below;
    auto [out, last_state, states] =
        op.call(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus, out_dtype);
    ctx->save_for_backward({u, delta, A, B, C, or_undefined(D), or_undefined(z),
                            or_undefined(delta_bias), or_undefined(initial_state), states});
    ctx->saved_data["delta_softplus"] = delta_softplus;
    ctx->set_materialize_grads(false);
    return {out, last_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::selective_scan_backward", "")
                               .typed<decltype(backward_device)>();
    const auto saved = ctx->get_saved_variables();
    auto [u, delta, A, B, C, D, z, delta_bias, initial_state] =
        op.call(optional(grads[0]), optional(grads[1]), saved[0], saved[1], saved[2], saved[3],
                saved[4], optional(saved[5]), optional(saved[6]), optional(saved[7]),
                optional(saved[8]), ctx->saved_data["delta_softplus"].toBool(), saved[9]);
    const auto if_given = [&](std::size_t input, const Tensor& gradient) {
      return saved[input].defined() ? gradient : Tensor();
    };
    return {u,
            delta,
            A,
            B,
            C,
            if_given(5, D),
            if_given(6, z),
            if_given(7, delta_bias),
            if_given(8, initial_state),
            Tensor(),
            Tensor()};
  }
};

std::tuple<Tensor, Tensor> forward_autograd(const Tensor& u, const Tensor& delta, const Tensor& A,
                                            const Tensor& B, const Tensor& C,
                                            const OptionalTensor& D, const OptionalTensor& z,
                                            const OptionalTensor& delta_bias,
                                            const OptionalTensor& initial_state,
                                            bool delta_softplus,
                                            std::optional<at::ScalarType> out_dtype) {
  if (!is_differentiated({u, delta, A, B, C, or_undefined(D), or_undefined(z),
                          or_undefined(delta_bias), or_undefined(initial_state)})) {
    at::AutoDispatchBelowADInplaceOrView below;  // nothing is kept
    return selective_scan(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus,
                          out_dtype);
  }
  auto results = SelectiveScanFunction::apply(u, delta, A, B, C, D, z, delta_bias, initial_state,
                                              delta_softplus, out_dtype);
  return {results[0], results[1]};
}

// Autocast casts the data and leaves the recurrence's parameters in float32.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
std::tuple<Tensor, Tensor> forward_autocast(const Tensor& u, const Tensor& delta, const Tensor& A,
                                            const Tensor& B, const Tensor& C,
                                            const OptionalTensor& D, const OptionalTensor& z,
                                            const OptionalTensor& delta_bias,
                                            const OptionalTensor& initial_state,
                                            bool delta_softplus,
                                            std::optional<at::ScalarType> out_dtype) {
  const AutocastArguments<kDevice, kKey> cast;
  return selective_scan(cast.data(u), cast.data(delta), cast.parameter(A), cast.data(B),
                        cast.data(C), cast.parameter(D), cast.data(z), cast.parameter(delta_bias),
                        cast.parameter(initial_state), delta_softplus, out_dtype);
}

template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Tensor step_autocast(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                     const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
                     const OptionalTensor& delta_bias, bool delta_softplus, Tensor& state) {
  const AutocastArguments<kDevice, kKey> cast;
  return selective_scan_step(cast.data(u), cast.data(delta), cast.parameter(A), cast.data(B),
                             cast.data(C), cast.parameter(D), cast.data(z),
                             cast.parameter(delta_bias), delta_softplus, state);
}

// ---- Registration ------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(linescan, CPU, m) {
  m.impl("selective_scan", forward_device);
  m.impl("selective_scan_kept", kept_device);
  m.impl("selective_scan_backward", backward_device);
  m.impl("selective_scan_step", step_device);
}
// The kernels' library may be absent or not loaded yet: run_forward() says so then.
TORCH_LIBRARY_IMPL(linescan, CUDA, m) {
  m.impl("selective_scan", forward_device);
  m.impl("selective_scan_kept", kept_device);
  m.impl("selective_scan_backward", backward_device);
  m.impl("selective_scan_step", step_device);
}
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("selective_scan", forward_meta);
  m.impl("selective_scan_kept", kept_meta);
  m.impl("selective_scan_backward", backward_meta);
  m.impl("selective_scan_step", step_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("selective_scan", forward_autograd);
  // Second derivatives and derivatives of a step: a clear error, never silently zero.
  m.impl("selective_scan_kept", torch::autograd::autogradNotImplementedFallback());
  m.impl("selective_scan_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("selective_scan_step", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(linescan, AutocastCPU, m) {
  m.impl("selective_scan", forward_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
  m.impl("selective_scan_step", step_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(linescan, AutocastCUDA, m) {
  m.impl("selective_scan", forward_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
  m.impl("selective_scan_step",
         step_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace

// ---- C++ interface: through the dispatcher, as from Python ---------------------------------------

std::tuple<Tensor, Tensor> selective_scan(const Tensor& u, const Tensor& delta, const Tensor& A,
                                          const Tensor& B, const Tensor& C, const OptionalTensor& D,
                                          const OptionalTensor& z, const OptionalTensor& delta_bias,
                                          const OptionalTensor& initial_state, bool delta_softplus,
                                          std::optional<at::ScalarType> out_dtype) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::selective_scan", "")
                             .typed<decltype(forward_device)>();
  return op.call(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus, out_dtype);
}

Tensor selective_scan_step(const Tensor& u, const Tensor& delta, const Tensor& A, const Tensor& B,
                           const Tensor& C, const OptionalTensor& D, const OptionalTensor& z,
                           const OptionalTensor& delta_bias, bool delta_softplus, Tensor& state) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::selective_scan_step", "")
                             .typed<decltype(step_device)>();
  return op.call(u, delta, A, B, C, D, z, delta_bias, delta_softplus, state);
}

}  // namespace linescan
