// The tensors of a call of gated_delta_rule as a problem: what its bindings for the CPU and for CUDA share.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>
#include <tuple>

#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

namespace linescan {

using GatedDeltaRuleTensors8 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                                          at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Keeps the tensors alive beside the views on them: rows and parameters contiguous, bounds int64. Checks
// everything. Arguments in the order of the schema.
struct GatedDeltaRuleCall {
  at::Tensor q, k, v;
  std::optional<at::Tensor> initial_state, A_log, dt_bias;
  at::Tensor bounds;
  GatedDeltaRuleProblem problem;

  GatedDeltaRuleCall(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& g, const at::Tensor& beta, std::optional<double> scale,
                     const std::optional<at::Tensor>& initial_state,
                     const std::optional<at::Tensor>& cu_seqlens,
                     const std::optional<at::Tensor>& A_log,
                     const std::optional<at::Tensor>& dt_bias, bool qk_l2norm, bool beta_sigmoid,
                     bool allow_neg_eigval, bool state_v_first, bool reverse,
                     std::string_view mode);

  // New tensors for o and, if it is wanted, final_state, which the problem then writes to. `v`: as the caller gave it.
  std::tuple<at::Tensor, at::Tensor> new_results(const at::Tensor& v, bool output_final_state);
};

// The same with upstream gradients and new tensors for the results, in the order of the schema.
struct GatedDeltaRuleBackwardCall : GatedDeltaRuleCall {
  std::optional<at::Tensor> grad_o, grad_final_state, states;
  GatedDeltaRuleTensors8 results;
  GatedDeltaRuleGradients gradients;

  GatedDeltaRuleBackwardCall(const std::optional<at::Tensor>& grad_o,
                             const std::optional<at::Tensor>& grad_final_state, const at::Tensor& q,
                             const at::Tensor& k, const at::Tensor& v, const at::Tensor& g,
                             const at::Tensor& beta, std::optional<double> scale,
                             const std::optional<at::Tensor>& initial_state,
                             const std::optional<at::Tensor>& cu_seqlens,
                             const std::optional<at::Tensor>& A_log,
                             const std::optional<at::Tensor>& dt_bias, bool qk_l2norm,
                             bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first,
                             bool reverse, const std::optional<at::Tensor>& states);
};

// One token for each of many sequences; `o` is new.
struct GatedDeltaRuleStepCall {
  at::Tensor q, k, v, slots, o;
  std::optional<at::Tensor> A_log, dt_bias;
  GatedDeltaRuleStepProblem problem;

  GatedDeltaRuleStepCall(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& g, const at::Tensor& beta, const at::Tensor& pool,
                         const at::Tensor& slots, std::optional<double> scale,
                         const std::optional<at::Tensor>& A_log,
                         const std::optional<at::Tensor>& dt_bias, bool qk_l2norm,
                         bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first);
};

// New tensors; sizes may be symbols. A final state that is not wanted has no elements.
std::tuple<at::Tensor, at::Tensor> gated_delta_rule_results(
    const at::Tensor& q, const at::Tensor& v, const std::optional<at::Tensor>& cu_seqlens,
    bool state_v_first, bool output_final_state);
// What the forward pass keeps for the backward pass on GPUs (gpu_kept_states). While tracing, where sizes may be symbols,
// a tensor of no elements: nothing but the backward pass looks at it.
at::Tensor gated_delta_rule_states(const at::Tensor& q, const at::Tensor& v,
                                   const std::optional<at::Tensor>& cu_seqlens,
                                   std::string_view mode);
// A tensor of no elements stands for an absent input's gradient: traced operators cannot return
// undefined ones.
GatedDeltaRuleTensors8 gated_delta_rule_gradients(const at::Tensor& q, const at::Tensor& k,
                                                  const at::Tensor& v, const at::Tensor& g,
                                                  const at::Tensor& beta,
                                                  const std::optional<at::Tensor>& initial_state,
                                                  const std::optional<at::Tensor>& A_log,
                                                  const std::optional<at::Tensor>& dt_bias);

}  // namespace linescan
