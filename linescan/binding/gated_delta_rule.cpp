// gated_delta_rule for LibTorch: schema, the CPU's way, Meta, autograd, registration. The kernels for
// GPUs are bound in cuda/gated_delta_rule.cpp.

#include "linescan/binding/gated_delta_rule.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "linescan/base/activity.h"
#include "linescan/binding/autocast.h"
#include "linescan/binding/gated_delta_rule_call.h"
#include "linescan/binding/tensors.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalScale = std::optional<double>;
using OutAndState = std::tuple<Tensor, Tensor>;
using OutAndStates = std::tuple<Tensor, Tensor, Tensor>;
using Gradients8 = GatedDeltaRuleTensors8;

// ---- Schema ------------------------------------------------------------------------------------

TORCH_LIBRARY_FRAGMENT(linescan, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, *, float? scale=None, "
      "Tensor? initial_state=None, Tensor? cu_seqlens=None, Tensor? A_log=None, "
      "Tensor? dt_bias=None, bool qk_l2norm=False, bool beta_sigmoid=False, "
      "bool allow_neg_eigval=False, bool state_v_first=False, bool reverse=False, "
      "str mode=\"auto\", bool output_final_state=True) -> (Tensor o, Tensor final_state)",
      tags);
  // The same for training: `states` is what a GPU's backward pass wants to have kept (gated_delta_rule.h).
  m.def(
      "gated_delta_rule_kept(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float? scale, "
      "Tensor? initial_state, Tensor? cu_seqlens, Tensor? A_log, Tensor? dt_bias, "
      "bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first, "
      "bool reverse, str mode, bool output_final_state) -> (Tensor o, Tensor final_state, "
      "Tensor states)",
      tags);
  m.def(
      "gated_delta_rule_backward(Tensor? grad_o, Tensor? grad_final_state, Tensor q, Tensor k, "
      "Tensor v, Tensor g, Tensor beta, float? scale, Tensor? initial_state, Tensor? cu_seqlens, "
      "Tensor? A_log, Tensor? dt_bias, bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval, "
      "bool state_v_first, bool reverse, Tensor? states=None) -> (Tensor q, Tensor k, Tensor v, "
      "Tensor g, Tensor beta, Tensor initial_state, Tensor A_log, Tensor dt_bias)",
      tags);
  m.def(
      "gated_delta_rule_step(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, "
      "Tensor(a!) pool, Tensor slots, *, float? scale=None, Tensor? A_log=None, "
      "Tensor? dt_bias=None, bool qk_l2norm=False, bool beta_sigmoid=False, "
      "bool allow_neg_eigval=False, bool state_v_first=False) -> Tensor",
      tags);
}

namespace {

constexpr std::string_view kName = "gated_delta_rule";
constexpr std::string_view kStepName = "gated_delta_rule_step";

// ---- On the CPU --------------------------------------------------------------------------------

// Calls run(plan, workspace, parallel_for).
template <class Run>
void with_plan(const GatedDeltaRuleProblem& problem, Pass pass, const Run& run) {
  const GatedDeltaRulePlan plan = linescan::plan(size_of(problem), pass, at::get_num_threads());
  const OperatorRunning running(plan);
  const Tensor workspace = at::empty({plan.workspace_bytes}, at::kByte);
  run(plan, static_cast<std::byte*>(workspace.data_ptr()), torch_parallel_for());
}

OutAndState forward_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                        const Tensor& beta, OptionalScale scale,
                        const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                        const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                        bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first, bool reverse,
                        std::string_view mode, bool output_final_state) {
  GatedDeltaRuleCall call(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias,
                          qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode);
  const OutAndState results = call.new_results(v, output_final_state);
  with_plan(call.problem, Pass::kForward,
            [&](const auto&... how) { forward(call.problem, how...); });
  return results;
}

// What kForward gives, and what the forward pass keeps: on the CPU and while tracing nothing.
template <auto kForward>
OutAndStates kept(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                  const Tensor& beta, OptionalScale scale, const OptionalTensor& initial_state,
                  const OptionalTensor& cu_seqlens, const OptionalTensor& A_log,
                  const OptionalTensor& dt_bias, bool qk_l2norm, bool beta_sigmoid,
                  bool allow_neg_eigval, bool state_v_first, bool reverse, std::string_view mode,
                  bool output_final_state) {
  auto [o, final_state] =
      kForward(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias, qk_l2norm,
               beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode, output_final_state);
  return {o, final_state, gated_delta_rule_states(q, v, cu_seqlens, mode)};
}

Gradients8 backward_cpu(const OptionalTensor& grad_o, const OptionalTensor& grad_final_state,
                        const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                        const Tensor& beta, OptionalScale scale,
                        const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                        const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                        bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first, bool reverse,
                        const OptionalTensor& states) {
  const GatedDeltaRuleBackwardCall call(
      grad_o, grad_final_state, q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias,
      qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, reverse, states);
  with_plan(call.problem, Pass::kBackward,
            [&](const auto&... how) { backward(call.problem, call.gradients, how...); });
  return call.results;
}

Tensor step_cpu(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                const Tensor& beta, Tensor& pool, const Tensor& slots, OptionalScale scale,
                const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first) {
  const GatedDeltaRuleStepCall call(q, k, v, g, beta, pool, slots, scale, A_log, dt_bias, qk_l2norm,
                                    beta_sigmoid, allow_neg_eigval, state_v_first);
  step(call.problem, torch_parallel_for());
  count_version(pool);
  return call.o;
}

// ---- Meta: shapes without data, for torch.compile ------------------------------------------------

OutAndState forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta, OptionalScale scale,
                         const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                         const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                         bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first, bool reverse,
                         std::string_view mode, bool output_final_state) {
  if (sizes_known({q, k, v, g, beta, initial_state, cu_seqlens, A_log, dt_bias}))
    GatedDeltaRuleCall(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias,
                       qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode);
  return gated_delta_rule_results(q, v, cu_seqlens, state_v_first, output_final_state);
}

Gradients8 backward_meta(const OptionalTensor& grad_o, const OptionalTensor& grad_final_state,
                         const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta, OptionalScale, const OptionalTensor& initial_state,
                         const OptionalTensor& cu_seqlens, const OptionalTensor& A_log,
                         const OptionalTensor& dt_bias, bool, bool, bool, bool, bool,
                         const OptionalTensor& states) {
  expect_devices(kName, q.device(),
                 {{"grad_o", grad_o},
                  {"grad_final_state", grad_final_state},
                  {"k", k},
                  {"v", v},
                  {"g", g},
                  {"beta", beta},
                  {"initial_state", initial_state},
                  {"cu_seqlens", cu_seqlens},
                  {"A_log", A_log},
                  {"dt_bias", dt_bias},
                  {"states", states}});
  return gated_delta_rule_gradients(q, k, v, g, beta, initial_state, A_log, dt_bias);
}

Tensor step_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                 const Tensor& beta, Tensor& pool, const Tensor& slots, OptionalScale,
                 const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool, bool, bool,
                 bool) {
  expect_devices(kStepName, q.device(),
                 {{"k", k},
                  {"v", v},
                  {"g", g},
                  {"beta", beta},
                  {"pool", pool},
                  {"slots", slots},
                  {"A_log", A_log},
                  {"dt_bias", dt_bias}});
  return at::empty_symint(v.sym_sizes(), v.options());
}

// ---- Autograd ----------------------------------------------------------------------------------

class GatedDeltaRuleFunction : public torch::autograd::Function<GatedDeltaRuleFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v,
      const Tensor& g, const Tensor& beta, const OptionalTensor& initial_state,
      const OptionalTensor& A_log, const OptionalTensor& dt_bias, const OptionalTensor& cu_seqlens,
      OptionalScale scale, bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
      bool state_v_first, bool reverse, std::string_view mode, bool output_final_state) {
    at::AutoDispatchBelowADInplaceOrView below;
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::gated_delta_rule_kept", "")
                               .typed<decltype(kept<forward_cpu>)>();
    auto [o, final_state, states] =
        op.call(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias, qk_l2norm,
                beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode, output_final_state);
    ctx->save_for_backward({q, k, v, g, beta, or_undefined(initial_state), or_undefined(A_log),
                            or_undefined(dt_bias), or_undefined(cu_seqlens), states});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["qk_l2norm"] = qk_l2norm;
    ctx->saved_data["beta_sigmoid"] = beta_sigmoid;
    ctx->saved_data["allow_neg_eigval"] = allow_neg_eigval;
    ctx->saved_data["state_v_first"] = state_v_first;
    ctx->saved_data["reverse"] = reverse;
    ctx->set_materialize_grads(false);
    if (!output_final_state) ctx->mark_non_differentiable({final_state});
    return {o, final_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::gated_delta_rule_backward", "")
                               .typed<decltype(backward_cpu)>();
    const auto saved = ctx->get_saved_variables();
    const auto flag = [&](const char* name) { return ctx->saved_data[name].toBool(); };
    const auto [q, k, v, g, beta, initial_state, A_log, dt_bias] = op.call(
        optional(grads[0]), optional(grads[1]), saved[0], saved[1], saved[2], saved[3], saved[4],
        ctx->saved_data["scale"].toOptional<double>(), optional(saved[5]), optional(saved[8]),
        optional(saved[6]), optional(saved[7]), flag("qk_l2norm"), flag("beta_sigmoid"),
        flag("allow_neg_eigval"), flag("state_v_first"), flag("reverse"), optional(saved[9]));
    const auto if_given = [&](int input, const Tensor& gradient) {
      return saved[input].defined() ? gradient : Tensor();
    };
    torch::autograd::variable_list results = {
        q, k, v, g, beta, if_given(5, initial_state), if_given(6, A_log), if_given(7, dt_bias)};
    results.resize(17);  // nothing for what is no differentiable tensor
    return results;
  }
};

OutAndState forward_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, OptionalScale scale,
                             const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                             const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                             bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                             bool state_v_first, bool reverse, std::string_view mode,
                             bool output_final_state) {
  if (!is_differentiated({q, k, v, g, beta, or_undefined(initial_state), or_undefined(A_log),
                          or_undefined(dt_bias)})) {  // nothing is kept
    at::AutoDispatchBelowADInplaceOrView below;
    return gated_delta_rule(q, k, v, g, beta,
                            {{.scale = scale,
                              .A_log = A_log,
                              .dt_bias = dt_bias,
                              .qk_l2norm = qk_l2norm,
                              .beta_sigmoid = beta_sigmoid,
                              .allow_neg_eigval = allow_neg_eigval,
                              .state_v_first = state_v_first},
                             initial_state,
                             cu_seqlens,
                             reverse,
                             std::string(mode),
                             output_final_state});
  }
  auto results = GatedDeltaRuleFunction::apply(
      q, k, v, g, beta, initial_state, A_log, dt_bias, cu_seqlens, scale, qk_l2norm, beta_sigmoid,
      allow_neg_eigval, state_v_first, reverse, mode, output_final_state);
  return {results[0], results[1]};
}

// Those that a step and a sequence have in common, as autocast leaves them.
template <class Cast>
GatedDeltaRuleStepOptions step_options(const Cast& cast, OptionalScale scale,
                                       const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                                       bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                                       bool state_v_first) {
  return {.scale = scale,
          .A_log = cast.parameter(A_log),
          .dt_bias = cast.parameter(dt_bias),
          .qk_l2norm = qk_l2norm,
          .beta_sigmoid = beta_sigmoid,
          .allow_neg_eigval = allow_neg_eigval,
          .state_v_first = state_v_first};
}

// Autocast casts q, k and v and leaves gates, beta and states in float32.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
OutAndState forward_autocast(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, OptionalScale scale,
                             const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                             const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                             bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                             bool state_v_first, bool reverse, std::string_view mode,
                             bool output_final_state) {
  const AutocastArguments<kDevice, kKey> cast;
  return gated_delta_rule(
      cast.data(q), cast.data(k), cast.data(v), cast.parameter(g), cast.parameter(beta),
      {step_options(cast, scale, A_log, dt_bias, qk_l2norm, beta_sigmoid, allow_neg_eigval,
                    state_v_first),
       cast.parameter(initial_state), cu_seqlens, reverse, std::string(mode), output_final_state});
}

template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Tensor step_autocast(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                     const Tensor& beta, Tensor& pool, const Tensor& slots, OptionalScale scale,
                     const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                     bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first) {
  const AutocastArguments<kDevice, kKey> cast;
  return gated_delta_rule_step(cast.data(q), cast.data(k), cast.data(v), cast.parameter(g),
                               cast.parameter(beta), pool, slots,
                               step_options(cast, scale, A_log, dt_bias, qk_l2norm, beta_sigmoid,
                                            allow_neg_eigval, state_v_first));
}

// ---- Registration ------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(linescan, CPU, m) {
  m.impl("gated_delta_rule", forward_cpu);
  m.impl("gated_delta_rule_kept", kept<forward_cpu>);
  m.impl("gated_delta_rule_backward", backward_cpu);
  m.impl("gated_delta_rule_step", step_cpu);
}
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("gated_delta_rule", forward_meta);
  m.impl("gated_delta_rule_kept", kept<forward_meta>);
  m.impl("gated_delta_rule_backward", backward_meta);
  m.impl("gated_delta_rule_step", step_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("gated_delta_rule", forward_autograd);
  // Second derivatives and derivatives of a step: a clear error, never silently zero.
  m.impl("gated_delta_rule_kept", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_delta_rule_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_delta_rule_step", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(linescan, AutocastCPU, m) {
  m.impl("gated_delta_rule", forward_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
  m.impl("gated_delta_rule_step",
         step_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(linescan, AutocastCUDA, m) {
  m.impl("gated_delta_rule",
         forward_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
  m.impl("gated_delta_rule_step",
         step_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace

// ---- C++ interface: through the dispatcher, as from Python ---------------------------------------

OutAndState gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, const GatedDeltaRuleOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::gated_delta_rule", "")
                             .typed<decltype(forward_cpu)>();
  return op.call(q, k, v, g, beta, options.scale, options.initial_state, options.cu_seqlens,
                 options.A_log, options.dt_bias, options.qk_l2norm, options.beta_sigmoid,
                 options.allow_neg_eigval, options.state_v_first, options.reverse, options.mode,
                 options.output_final_state);
}

Tensor gated_delta_rule_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, Tensor& pool, const Tensor& slots,
                             const GatedDeltaRuleStepOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::gated_delta_rule_step", "")
                             .typed<decltype(step_cpu)>();
  return op.call(q, k, v, g, beta, pool, slots, options.scale, options.A_log, options.dt_bias,
                 options.qk_l2norm, options.beta_sigmoid, options.allow_neg_eigval,
                 options.state_v_first);
}

}  // namespace linescan
