// causal_conv1d for LibTorch: schema, the CPU's way, Meta, autograd, registration. The kernels for
// GPUs are bound in cuda/causal_conv1d.cpp.

#include "linescan/binding/causal_conv1d.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "linescan/binding/autocast.h"
#include "linescan/binding/causal_conv1d_call.h"
#include "linescan/binding/cpu_plan.h"
#include "linescan/binding/tensors.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Results = std::tuple<Tensor, Tensor>;
using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// ---- Schema ------------------------------------------------------------------------------------

TORCH_LIBRARY_FRAGMENT(linescan, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "causal_conv1d(Tensor x, Tensor weight, Tensor? bias=None, Tensor? initial_state=None, "
      "Tensor? cu_seqlens=None, bool silu=True) -> (Tensor out, Tensor final_state)",
      tags);
  m.def(
      "causal_conv1d_backward(Tensor? grad_out, Tensor? grad_final_state, Tensor x, Tensor weight, "
      "Tensor? bias, Tensor? initial_state, Tensor? cu_seqlens, bool silu) -> (Tensor x, "
      "Tensor weight, Tensor bias, Tensor initial_state)",
      tags);
  m.def(
      "causal_conv1d_step(Tensor x, Tensor weight, Tensor? bias=None, *, Tensor(a!) state, "
      "bool silu=True) -> Tensor",
      tags);
}

namespace {

constexpr std::string_view kName = "causal_conv1d";

// ---- On the CPU --------------------------------------------------------------------------------

void run_forward(const CausalConv1dProblem& problem) {
  with_cpu_plan(problem, Pass::kForward, [&](const auto&... how) { forward(problem, how...); });
}

Results forward_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                    const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                    bool silu) {
  CausalConv1dCall call(x, weight, bias, initial_state, cu_seqlens, silu);
  auto [out, final_state] = causal_conv1d_results(x, weight, cu_seqlens);
  call.problem.out = view_of(kName, "out", out);
  call.problem.final_state = view_of(kName, "final_state", final_state);
  run_forward(call.problem);
  return {out, final_state};
}

Gradients backward_cpu(const OptionalTensor& grad_out, const OptionalTensor& grad_final_state,
                       const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                       bool silu) {
  const CausalConv1dBackwardCall call(grad_out, grad_final_state, x, weight, bias, initial_state,
                                      cu_seqlens, silu);
  with_cpu_plan(call.problem, Pass::kBackward,
                [&](const auto&... how) { backward(call.problem, call.gradients, how...); });
  return call.results(weight, bias);
}

Tensor step_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Tensor& state,
                bool silu) {
  CausalConv1dCall call = causal_conv1d_step_call(x, weight, bias, state, silu);
  const Tensor out = at::empty_like(x), token = one_token(out);
  call.problem.out = view_of(kName, "out", token);
  run_forward(call.problem);
  count_version(state);
  return out;
}

// ---- Meta: shapes without data, for torch.compile ------------------------------------------------

Results forward_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                     const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                     bool silu) {
  if (sizes_known({x, weight, bias, initial_state, cu_seqlens}))
    CausalConv1dCall(x, weight, bias, initial_state, cu_seqlens, silu);
  return causal_conv1d_results(x, weight, cu_seqlens);
}

Gradients backward_meta(const OptionalTensor& grad_out, const OptionalTensor& grad_final_state,
                        const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                        const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                        bool silu) {
  if (sizes_known({grad_out, grad_final_state, x, weight, bias, initial_state, cu_seqlens}))
    CausalConv1dBackwardCall(grad_out, grad_final_state, x, weight, bias, initial_state, cu_seqlens,
                             silu);
  return {at::empty_like(x), at::empty_symint(weight.sym_sizes(), weight.options()),
          gradient_like(bias, x), gradient_like(initial_state, x)};
}

Tensor step_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Tensor& state,
                 bool silu) {
  if (sizes_known({x, weight, bias, state})) causal_conv1d_step_call(x, weight, bias, state, silu);
  return at::empty_like(x);
}

// ---- Autograd ----------------------------------------------------------------------------------

class CausalConv1dFunction : public torch::autograd::Function<CausalConv1dFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const Tensor& x, const Tensor& weight,
                                                const OptionalTensor& bias,
                                                const OptionalTensor& initial_state,
                                                const OptionalTensor& cu_seqlens, bool silu) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [out, final_state] = causal_conv1d(x, weight, bias, initial_state, cu_seqlens, silu);
    ctx->save_for_backward(
        {x, weight, or_undefined(bias), or_undefined(initial_state), or_undefined(cu_seqlens)});
    ctx->saved_data["silu"] = silu;
    ctx->set_materialize_grads(false);
    return {out, final_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::causal_conv1d_backward", "")
                               .typed<decltype(backward_cpu)>();
    const auto saved = ctx->get_saved_variables();
    auto [x, weight, bias, initial_state] =
        op.call(optional(grads[0]), optional(grads[1]), saved[0], saved[1], optional(saved[2]),
                optional(saved[3]), optional(saved[4]), ctx->saved_data["silu"].toBool());
    return {x,
            weight,
            saved[2].defined() ? bias : Tensor(),
            saved[3].defined() ? initial_state : Tensor(),
            Tensor(),
            Tensor()};
  }
};

Results forward_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                         const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                         bool silu) {
  const auto results =
      CausalConv1dFunction::apply(x, weight, bias, initial_state, cu_seqlens, silu);
  return {results[0], results[1]};
}

// ---- Autocast: data in its type, parameters as they are ------------------------------------------

template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Results forward_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                         const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                         bool silu) {
  const AutocastArguments<kDevice, kKey> cast;
  return causal_conv1d(cast.data(x), weight, bias, cast.data(initial_state), cu_seqlens, silu);
}

// The state has the type of the tokens before.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Tensor step_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                     Tensor& state, bool silu) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const at::ScalarType type =
      state.defined() ? state.scalar_type() : at::autocast::get_autocast_dtype(kDevice);
  return causal_conv1d_step(at::autocast::cached_cast(type, x, kDevice), weight, bias, state, silu);
}

// ---- Registration ------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(linescan, CPU, m) {
  m.impl("causal_conv1d", forward_cpu);
  m.impl("causal_conv1d_backward", backward_cpu);
  m.impl("causal_conv1d_step", step_cpu);
}
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("causal_conv1d", forward_meta);
  m.impl("causal_conv1d_backward", backward_meta);
  m.impl("causal_conv1d_step", step_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("causal_conv1d", forward_autograd);
  // Second derivatives and derivatives of a step: a clear error, never silently zero.
  m.impl("causal_conv1d_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("causal_conv1d_step", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(linescan, AutocastCPU, m) {
  m.impl("causal_conv1d", forward_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
  m.impl("causal_conv1d_step", step_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(linescan, AutocastCUDA, m) {
  m.impl("causal_conv1d", forward_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
  m.impl("causal_conv1d_step",
         step_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace

// ---- C++ interface: through the dispatcher, as from Python ---------------------------------------

Results causal_conv1d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                      const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                      bool silu) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::causal_conv1d", "")
                             .typed<decltype(forward_cpu)>();
  return op.call(x, weight, bias, initial_state, cu_seqlens, silu);
}

Tensor causal_conv1d_step(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                          Tensor& state, bool silu) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::causal_conv1d_step", "")
                             .typed<decltype(step_cpu)>();
  return op.call(x, weight, bias, state, silu);
}

}  // namespace linescan
