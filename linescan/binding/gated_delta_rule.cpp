// gated_delta_rule for LibTorch: schema, tensor -> problem, autograd, registration.

#include "linescan/binding/gated_delta_rule.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "linescan/base/error.h"
#include "linescan/binding/tensors.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalScale = std::optional<double>;
using OutAndState = std::tuple<Tensor, Tensor>;
using Gradients8 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// ---- Schema ------------------------------------------------------------------------------------

TORCH_LIBRARY_FRAGMENT(linescan, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, *, float? scale=None, "
      "Tensor? initial_state=None, Tensor? cu_seqlens=None, Tensor? A_log=None, "
      "Tensor? dt_bias=None, bool qk_l2norm=False, bool beta_sigmoid=False, "
      "bool allow_neg_eigval=False, bool state_v_first=False, bool reverse=False, "
      "str mode=\"auto\") -> (Tensor o, Tensor final_state)",
      tags);
  m.def(
      "gated_delta_rule_backward(Tensor? grad_o, Tensor? grad_final_state, Tensor q, Tensor k, "
      "Tensor v, Tensor g, Tensor beta, float? scale, Tensor? initial_state, Tensor? cu_seqlens, "
      "Tensor? A_log, Tensor? dt_bias, bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval, "
      "bool state_v_first, bool reverse) -> (Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, "
      "Tensor initial_state, Tensor A_log, Tensor dt_bias)",
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

// ---- Tensors to problem ------------------------------------------------------------------------

// The operator wants the last dimension to be contiguous; anything else is made so, once.
Tensor with_contiguous_rows(const Tensor& tensor) {
  if (tensor.dim() == 0 || tensor.size(-1) <= 1 || tensor.stride(-1) == 1) return tensor;
  return tensor.contiguous();
}

OptionalTensor contiguous(const OptionalTensor& tensor) {
  return given(tensor) ? OptionalTensor(tensor->contiguous()) : std::nullopt;
}

// int32 or int64 [count] as contiguous int64, where `expected` is.
Tensor indices(std::string_view op, std::string_view argument, const Tensor& tensor,
               std::string_view meaning, c10::Device expected) {
  expect_device(op, argument, tensor, expected);
  if (tensor.dim() != 1)
    throw_error<InvalidArgument>("{}: {} has {} dimensions, expected 1 = {}", op, argument,
                                 tensor.dim(), meaning);
  if (tensor.scalar_type() != at::kInt && tensor.scalar_type() != at::kLong)
    throw_error<InvalidArgument>("{}: {} is {}, expected int32 or int64", op, argument,
                                 c10::toString(tensor.scalar_type()));
  return tensor.to(at::kLong).contiguous();
}

const int64_t* data_of(const Tensor& indices) {
  return indices.is_meta() ? nullptr : indices.data_ptr<int64_t>();
}

// View of a tensor that has to be where `on` is.
template <class T>
TensorView view_beside(std::string_view op, const char* argument, const T& tensor,
                       const Tensor& on) {
  if constexpr (std::is_same_v<T, Tensor>)
    expect_device(op, argument, tensor, on.device());
  else if (given(tensor))
    expect_device(op, argument, *tensor, on.device());
  return view_of(op, argument, tensor);
}

GatedDeltaRuleInputs inputs_of(std::string_view op, const Tensor& q, OptionalScale scale,
                               const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                               bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                               bool state_v_first) {
  const int64_t K = q.dim() > 0 ? q.size(-1) : 1;
  return {.A_log = view_beside(op, "A_log", A_log, q),
          .dt_bias = view_beside(op, "dt_bias", dt_bias, q),
          .scale = scale.value_or(1 / std::sqrt(static_cast<double>(K))),
          .qk_l2norm = qk_l2norm,
          .beta_sigmoid = beta_sigmoid,
          .allow_neg_eigval = allow_neg_eigval,
          .state_v_first = state_v_first};
}

// The tensors of a call, kept alive beside the views on them.
struct Call {
  Tensor q, k, v;
  OptionalTensor initial_state;
  Tensor bounds;
  GatedDeltaRuleProblem problem;

  Call(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& g,
       const Tensor& beta, OptionalScale scale, const OptionalTensor& initial_state_in,
       const OptionalTensor& cu_seqlens, const OptionalTensor& A_log, const OptionalTensor& dt_bias,
       bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first, bool reverse,
       std::string_view mode)
      : q(with_contiguous_rows(q_in)),
        k(with_contiguous_rows(k_in)),
        v(with_contiguous_rows(v_in)),
        initial_state(contiguous(initial_state_in)) {
    problem.mode = parse_gated_delta_rule_mode(mode);
    problem.q = view_of(kName, "q", q);
    problem.k = view_beside(kName, "k", k, q);
    problem.v = view_beside(kName, "v", v, q);
    problem.g = view_beside(kName, "g", g, q);
    problem.beta = view_beside(kName, "beta", beta, q);
    problem.initial_state = view_beside(kName, "initial_state", initial_state, q);
    problem.inputs = inputs_of(kName, q, scale, A_log, dt_bias, qk_l2norm, beta_sigmoid,
                               allow_neg_eigval, state_v_first);
    problem.reverse = reverse;
    if (given(cu_seqlens)) {
      bounds = indices(kName, "cu_seqlens", *cu_seqlens, "[sequences + 1]", q.device());
      problem.packed = true;
      problem.bounds = data_of(bounds);
      problem.packed_sequences = bounds.size(0) - 1;
    }
    check(problem);
  }
};

at::TensorOptions parameter_options(const Tensor& q) {
  return q.options().dtype(parameter_type(q));
}

OutAndState empty_results(const Tensor& q, const Tensor& v, const OptionalTensor& cu_seqlens,
                          bool state_v_first) {
  const c10::SymInt sequences = given(cu_seqlens) ? cu_seqlens->sym_size(0) - 1 : q.sym_size(0);
  const c10::SymInt K = q.sym_size(3), V = v.sym_size(3);
  return {at::empty_symint(v.sym_sizes(), v.options()),
          at::empty_symint({sequences, v.sym_size(2), state_v_first ? V : K, state_v_first ? K : V},
                           parameter_options(q))};
}

OutAndState forward_device(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                           const Tensor& beta, OptionalScale scale,
                           const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                           const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                           bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                           bool state_v_first, bool reverse, std::string_view mode) {
  Call call(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias, qk_l2norm,
            beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode);
  auto [o, final_state] = empty_results(q, v, cu_seqlens, state_v_first);
  GatedDeltaRuleProblem& problem = call.problem;
  problem.o = view_of(kName, "o", o);
  problem.final_state = view_of(kName, "final_state", final_state);
  const GatedDeltaRulePlan plan =
      linescan::plan(size_of(problem), Pass::kForward, at::get_num_threads());
  const Tensor workspace = at::empty({plan.workspace_bytes}, at::kByte);
  forward(problem, plan, static_cast<std::byte*>(workspace.data_ptr()), torch_parallel_for());
  return {o, final_state};
}

Gradients8 empty_gradients(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                           const Tensor& beta, const OptionalTensor& initial_state,
                           const OptionalTensor& A_log, const OptionalTensor& dt_bias) {
  // A tensor of no elements stands for an absent one: traced operators cannot return undefined ones.
  const auto like = [&](const OptionalTensor& tensor) {
    return given(tensor) ? at::empty_symint(tensor->sym_sizes(), tensor->options())
                         : at::empty({0}, q.options());
  };
  return {like(q),     like(k),      like(v), like(g), like(beta), like(initial_state),
          like(A_log), like(dt_bias)};
}

Gradients8 backward_device(const OptionalTensor& grad_o, const OptionalTensor& grad_final_state,
                           const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                           const Tensor& beta, OptionalScale scale,
                           const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                           const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                           bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                           bool state_v_first, bool reverse) {
  const Call call(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias, qk_l2norm,
                  beta_sigmoid, allow_neg_eigval, state_v_first, reverse, "auto");
  const GatedDeltaRuleProblem& problem = call.problem;
  const auto [o, final_state] = empty_results(q, v, cu_seqlens, state_v_first);
  if (given(grad_o)) expect_sizes(kName, "grad_o", *grad_o, o.sizes());
  if (given(grad_final_state))
    expect_sizes(kName, "grad_final_state", *grad_final_state, final_state.sizes());
  auto results = empty_gradients(q, k, v, g, beta, initial_state, A_log, dt_bias);
  auto& [gq, gk, gv, gg, gbeta, ginitial, gA_log, gdt_bias] = results;
  const auto wanted = [](const TensorView& input, const Tensor& gradient) {
    return input ? view_of(kName, "gradient", gradient) : TensorView{};
  };
  const GatedDeltaRuleGradients gradients{
      .o = view_of(kName, "grad_o", grad_o),
      .final_state = view_of(kName, "grad_final_state", grad_final_state),
      .q = wanted(problem.q, gq),
      .k = wanted(problem.k, gk),
      .v = wanted(problem.v, gv),
      .g = wanted(problem.g, gg),
      .beta = wanted(problem.beta, gbeta),
      .initial_state = wanted(problem.initial_state, ginitial),
      .A_log = wanted(problem.inputs.A_log, gA_log),
      .dt_bias = wanted(problem.inputs.dt_bias, gdt_bias)};
  const GatedDeltaRulePlan plan =
      linescan::plan(size_of(problem), Pass::kBackward, at::get_num_threads());
  const Tensor workspace = at::empty({plan.workspace_bytes}, at::kByte);
  backward(problem, gradients, plan, static_cast<std::byte*>(workspace.data_ptr()),
           torch_parallel_for());
  return results;
}

Tensor step_device(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& g,
                   const Tensor& beta, Tensor& pool, const Tensor& slots_in, OptionalScale scale,
                   const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                   bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first) {
  const Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in);
  const Tensor v = with_contiguous_rows(v_in);
  const Tensor slots = indices(kStepName, "slots", slots_in, "[tokens]", q.device());
  GatedDeltaRuleStepProblem problem;
  problem.q = view_of(kStepName, "q", q);
  problem.k = view_beside(kStepName, "k", k, q);
  problem.v = view_beside(kStepName, "v", v, q);
  problem.g = view_beside(kStepName, "g", g, q);
  problem.beta = view_beside(kStepName, "beta", beta, q);
  problem.pool = view_beside(kStepName, "pool", pool, q);
  problem.inputs = inputs_of(kStepName, q, scale, A_log, dt_bias, qk_l2norm, beta_sigmoid,
                             allow_neg_eigval, state_v_first);
  check(problem);
  if (slots.size(0) != q.size(0))
    throw_error<InvalidArgument>("{}: slots has {} elements, expected {} = [tokens]", kStepName,
                                 slots.size(0), q.size(0));
  const Tensor o = at::empty(v.sizes(), v.options());
  problem.slots = data_of(slots);
  problem.o = view_of(kStepName, "o", o);
  step(problem, torch_parallel_for());
  return o;
}

// ---- Meta: shapes without data, for torch.compile ------------------------------------------------

// Sizes that are symbols cannot be checked while tracing; the kernel checks them when it runs.
bool sizes_known(std::initializer_list<OptionalTensor> tensors) {
  for (const OptionalTensor& tensor : tensors)
    if (given(tensor) && tensor->unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  return true;
}

OutAndState forward_meta(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                         const Tensor& beta, OptionalScale scale,
                         const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                         const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                         bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first, bool reverse,
                         std::string_view mode) {
  if (sizes_known({q, k, v, g, beta, initial_state, cu_seqlens, A_log, dt_bias}))
    Call(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias, qk_l2norm,
         beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode);
  return empty_results(q, v, cu_seqlens, state_v_first);
}

Gradients8 backward_meta(const OptionalTensor&, const OptionalTensor&, const Tensor& q,
                         const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
                         OptionalScale, const OptionalTensor& initial_state, const OptionalTensor&,
                         const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool, bool,
                         bool, bool, bool) {
  return empty_gradients(q, k, v, g, beta, initial_state, A_log, dt_bias);
}

Tensor step_meta(const Tensor&, const Tensor&, const Tensor& v, const Tensor&, const Tensor&,
                 Tensor&, const Tensor&, OptionalScale, const OptionalTensor&,
                 const OptionalTensor&, bool, bool, bool, bool) {
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
      bool state_v_first, bool reverse, std::string_view mode) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [o, final_state] = gated_delta_rule(q, k, v, g, beta,
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
                                              std::string(mode)});
    ctx->save_for_backward({q, k, v, g, beta, or_undefined(initial_state), or_undefined(A_log),
                            or_undefined(dt_bias), or_undefined(cu_seqlens)});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["qk_l2norm"] = qk_l2norm;
    ctx->saved_data["beta_sigmoid"] = beta_sigmoid;
    ctx->saved_data["allow_neg_eigval"] = allow_neg_eigval;
    ctx->saved_data["state_v_first"] = state_v_first;
    ctx->saved_data["reverse"] = reverse;
    ctx->set_materialize_grads(false);
    return {o, final_state};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::gated_delta_rule_backward", "")
                               .typed<decltype(backward_device)>();
    const auto saved = ctx->get_saved_variables();
    const auto flag = [&](const char* name) { return ctx->saved_data[name].toBool(); };
    const auto [q, k, v, g, beta, initial_state, A_log, dt_bias] = op.call(
        optional(grads[0]), optional(grads[1]), saved[0], saved[1], saved[2], saved[3], saved[4],
        ctx->saved_data["scale"].toOptional<double>(), optional(saved[5]), optional(saved[8]),
        optional(saved[6]), optional(saved[7]), flag("qk_l2norm"), flag("beta_sigmoid"),
        flag("allow_neg_eigval"), flag("state_v_first"), flag("reverse"));
    const auto if_given = [&](int input, const Tensor& gradient) {
      return saved[input].defined() ? gradient : Tensor();
    };
    torch::autograd::variable_list results = {
        q, k, v, g, beta, if_given(5, initial_state), if_given(6, A_log), if_given(7, dt_bias)};
    results.resize(16);  // nothing for what is no differentiable tensor
    return results;
  }
};

OutAndState forward_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, OptionalScale scale,
                             const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                             const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                             bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                             bool state_v_first, bool reverse, std::string_view mode) {
  auto results = GatedDeltaRuleFunction::apply(q, k, v, g, beta, initial_state, A_log, dt_bias,
                                               cu_seqlens, scale, qk_l2norm, beta_sigmoid,
                                               allow_neg_eigval, state_v_first, reverse, mode);
  return {results[0], results[1]};
}

// Autocast casts q, k and v and leaves gates, beta and states in float32.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
OutAndState forward_autocast(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, OptionalScale scale,
                             const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
                             const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                             bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                             bool state_v_first, bool reverse, std::string_view mode) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(kKey);
  const at::ScalarType type = at::autocast::get_autocast_dtype(kDevice);
  const auto data = [&](const Tensor& tensor) {
    return at::autocast::cached_cast(type, tensor, kDevice);
  };
  const auto parameter = [&](const auto& tensor) {
    return at::autocast::cached_cast(at::kFloat, tensor, kDevice);
  };
  GatedDeltaRuleOptions options;
  options.scale = scale;
  options.A_log = parameter(A_log);
  options.dt_bias = parameter(dt_bias);
  options.qk_l2norm = qk_l2norm;
  options.beta_sigmoid = beta_sigmoid;
  options.allow_neg_eigval = allow_neg_eigval;
  options.state_v_first = state_v_first;
  options.initial_state = parameter(initial_state);
  options.cu_seqlens = cu_seqlens;
  options.reverse = reverse;
  options.mode = mode;
  return gated_delta_rule(data(q), data(k), data(v), parameter(g), parameter(beta), options);
}

// ---- Registration ------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(linescan, CPU, m) {
  m.impl("gated_delta_rule", forward_device);
  m.impl("gated_delta_rule_backward", backward_device);
  m.impl("gated_delta_rule_step", step_device);
}
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("gated_delta_rule", forward_meta);
  m.impl("gated_delta_rule_backward", backward_meta);
  m.impl("gated_delta_rule_step", step_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("gated_delta_rule", forward_autograd);
  // Second derivatives and derivatives of a step: a clear error, never silently zero.
  m.impl("gated_delta_rule_backward", torch::autograd::autogradNotImplementedFallback());
  m.impl("gated_delta_rule_step", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(linescan, AutocastCPU, m) {
  m.impl("gated_delta_rule", forward_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(linescan, AutocastCUDA, m) {
  m.impl("gated_delta_rule",
         forward_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace

// ---- C++ interface: through the dispatcher, as from Python ---------------------------------------

OutAndState gated_delta_rule(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, const GatedDeltaRuleOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::gated_delta_rule", "")
                             .typed<decltype(forward_device)>();
  return op.call(q, k, v, g, beta, options.scale, options.initial_state, options.cu_seqlens,
                 options.A_log, options.dt_bias, options.qk_l2norm, options.beta_sigmoid,
                 options.allow_neg_eigval, options.state_v_first, options.reverse, options.mode);
}

Tensor gated_delta_rule_step(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                             const Tensor& beta, Tensor& pool, const Tensor& slots,
                             const GatedDeltaRuleStepOptions& options) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::gated_delta_rule_step", "")
                             .typed<decltype(step_device)>();
  return op.call(q, k, v, g, beta, pool, slots, options.scale, options.A_log, options.dt_bias,
                 options.qk_l2norm, options.beta_sigmoid, options.allow_neg_eigval,
                 options.state_v_first);
}

}  // namespace linescan
