#include "linescan/binding/gated_delta_rule_call.h"

#include <ATen/ops/empty.h>

#include <cmath>

#include "linescan/base/error.h"
#include "linescan/binding/tensors.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

namespace {

constexpr std::string_view kName = "gated_delta_rule";
constexpr std::string_view kStepName = "gated_delta_rule_step";

// The operator wants the last dimension to be contiguous; anything else is made so, once.
Tensor with_contiguous_rows(const Tensor& tensor) {
  if (tensor.dim() == 0 || tensor.size(-1) <= 1 || tensor.stride(-1) == 1) return tensor;
  return tensor.contiguous();
}
OptionalTensor with_contiguous_rows(const OptionalTensor& tensor) {
  return given(tensor) ? OptionalTensor(with_contiguous_rows(*tensor)) : std::nullopt;
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

GatedDeltaRuleInputs inputs_of(std::string_view op, const Tensor& q, std::optional<double> scale,
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

}  // namespace

GatedDeltaRuleCall::GatedDeltaRuleCall(
    const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& g, const Tensor& beta,
    std::optional<double> scale, const OptionalTensor& initial_state_in,
    const OptionalTensor& cu_seqlens, const OptionalTensor& A_log_in,
    const OptionalTensor& dt_bias_in, bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
    bool state_v_first, bool reverse, std::string_view mode)
    : q(with_contiguous_rows(q_in)),
      k(with_contiguous_rows(k_in)),
      v(with_contiguous_rows(v_in)),
      initial_state(contiguous(initial_state_in)),
      A_log(contiguous(A_log_in)),
      dt_bias(contiguous(dt_bias_in)) {
  problem.mode = parse_gated_delta_rule_mode(std::string(mode));
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

std::tuple<Tensor, Tensor> GatedDeltaRuleCall::new_results(const Tensor& v_in,
                                                           bool output_final_state) {
  const auto results =
      gated_delta_rule_results(q, v_in, bounds.defined() ? OptionalTensor(bounds) : std::nullopt,
                               problem.inputs.state_v_first, output_final_state);
  problem.o = view_of(kName, "o", std::get<0>(results));
  if (output_final_state) problem.final_state = view_of(kName, "final_state", std::get<1>(results));
  return results;
}

GatedDeltaRuleBackwardCall::GatedDeltaRuleBackwardCall(
    const OptionalTensor& grad_o_in, const OptionalTensor& grad_final_state_in, const Tensor& q_in,
    const Tensor& k_in, const Tensor& v_in, const Tensor& g, const Tensor& beta,
    std::optional<double> scale, const OptionalTensor& initial_state_in,
    const OptionalTensor& cu_seqlens, const OptionalTensor& A_log_in,
    const OptionalTensor& dt_bias_in, bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
    bool state_v_first, bool reverse, const OptionalTensor& states_in)
    : GatedDeltaRuleCall(q_in, k_in, v_in, g, beta, scale, initial_state_in, cu_seqlens, A_log_in,
                         dt_bias_in, qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first,
                         reverse, "auto"),
      grad_o(with_contiguous_rows(grad_o_in)),
      grad_final_state(grad_final_state_in),
      states(contiguous(states_in)),
      results(gated_delta_rule_gradients(q_in, k_in, v_in, g, beta, initial_state_in, A_log_in,
                                         dt_bias_in)) {
  if (given(grad_o)) expect_sizes(kName, "grad_o", *grad_o, v.sizes());
  if (given(grad_final_state)) {
    const auto& inputs = problem.inputs;
    const int64_t K = q.size(3), V = v.size(3);
    expect_sizes(kName, "grad_final_state", *grad_final_state,
                 {size_of(problem).sequences, v.size(2), inputs.state_v_first ? V : K,
                  inputs.state_v_first ? K : V});
  }
  if (given(states) && states->numel() > 0) {
    problem.states = view_beside(kName, "states", states, q);
    check(problem);
  }
  const auto expect_type = [](const char* argument, const OptionalTensor& tensor,
                              at::ScalarType type) {
    if (given(tensor) && tensor->scalar_type() != type)
      throw_error<InvalidArgument>("{}: {} is {}, expected {}", kName, argument,
                                   c10::toString(tensor->scalar_type()), c10::toString(type));
  };
  expect_type("grad_o", grad_o, q.scalar_type());
  expect_type("grad_final_state", grad_final_state, parameter_type(q));
  const auto& [gq, gk, gv, gg, gbeta, ginitial, gA_log, gdt_bias] = results;
  const auto wanted = [](const TensorView& input, const Tensor& gradient) {
    return input ? view_of(kName, "gradient", gradient) : TensorView{};
  };
  gradients = {.o = view_beside(kName, "grad_o", grad_o, q),
               .final_state = view_beside(kName, "grad_final_state", grad_final_state, q),
               .q = wanted(problem.q, gq),
               .k = wanted(problem.k, gk),
               .v = wanted(problem.v, gv),
               .g = wanted(problem.g, gg),
               .beta = wanted(problem.beta, gbeta),
               .initial_state = wanted(problem.initial_state, ginitial),
               .A_log = wanted(problem.inputs.A_log, gA_log),
               .dt_bias = wanted(problem.inputs.dt_bias, gdt_bias)};
}

GatedDeltaRuleStepCall::GatedDeltaRuleStepCall(
    const Tensor& q_in, const Tensor& k_in, const Tensor& v_in, const Tensor& g, const Tensor& beta,
    const Tensor& pool, const Tensor& slots_in, std::optional<double> scale,
    const OptionalTensor& A_log_in, const OptionalTensor& dt_bias_in, bool qk_l2norm,
    bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first)
    : q(with_contiguous_rows(q_in)),
      k(with_contiguous_rows(k_in)),
      v(with_contiguous_rows(v_in)),
      slots(indices(kStepName, "slots", slots_in, "[tokens]", q.device())),
      A_log(contiguous(A_log_in)),
      dt_bias(contiguous(dt_bias_in)) {
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
  o = at::empty(v.sizes(), v.options());
  problem.slots = data_of(slots);
  problem.o = view_of(kStepName, "o", o);
}

std::tuple<Tensor, Tensor> gated_delta_rule_results(const Tensor& q, const Tensor& v,
                                                    const OptionalTensor& cu_seqlens,
                                                    bool state_v_first, bool output_final_state) {
  const at::TensorOptions state = q.options().dtype(parameter_type(q));
  if (!output_final_state)
    return {at::empty_symint(v.sym_sizes(), v.options()), at::empty({0}, state)};
  const c10::SymInt sequences = given(cu_seqlens) ? cu_seqlens->sym_size(0) - 1 : q.sym_size(0);
  const c10::SymInt K = q.sym_size(3), V = v.sym_size(3);
  return {at::empty_symint(v.sym_sizes(), v.options()),
          at::empty_symint({sequences, v.sym_size(2), state_v_first ? V : K, state_v_first ? K : V},
                           state)};
}

Tensor gated_delta_rule_states(const Tensor& q, const Tensor& v, const OptionalTensor& cu_seqlens,
                               std::string_view mode) {
  const at::TensorOptions options = q.options().dtype(at::kFloat);
  const std::optional<DType> type = dtype_of(q.scalar_type());
  if (!q.is_cuda() || !type) return at::empty({0}, options);
  const bool packed = given(cu_seqlens);
  const GatedDeltaRuleSize size = {.batch = q.size(0),
                                   .sequences = packed ? cu_seqlens->size(0) - 1 : q.size(0),
                                   .length = q.size(1),
                                   .heads = q.size(2),
                                   .value_heads = v.size(2),
                                   .K = q.size(3),
                                   .V = v.size(3),
                                   .dtype = *type,
                                   .mode = parse_gated_delta_rule_mode(std::string(mode))};
  return at::empty({gpu_kept_states(size, packed, gpu_piece(size, packed))}, options);
}

GatedDeltaRuleTensors8 gated_delta_rule_gradients(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  const Tensor& g, const Tensor& beta,
                                                  const OptionalTensor& initial_state,
                                                  const OptionalTensor& A_log,
                                                  const OptionalTensor& dt_bias) {
  const auto like = [&](const OptionalTensor& tensor) {
    return given(tensor) ? at::empty_symint(tensor->sym_sizes(), tensor->options())
                         : at::empty({0}, q.options());
  };
  return {like(q),     like(k),      like(v), like(g), like(beta), like(initial_state),
          like(A_log), like(dt_bias)};
}

}  // namespace linescan
