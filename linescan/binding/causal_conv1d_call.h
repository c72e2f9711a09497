// The tensors of a call of causal_conv1d as a problem: what its bindings for the CPU and for CUDA share.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "linescan/ops/causal_conv1d/causal_conv1d.h"

namespace linescan {

// Keeps the tensors alive beside the views on them; weight and bias become the kernels' type, offsets
// int64. Checks everything; `op` and `state` are what messages call the operator and initial_state.
struct CausalConv1dCall {
  at::Tensor weight, bias, offsets;
  CausalConv1dProblem problem;

  CausalConv1dCall(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias,
                   const std::optional<at::Tensor>& initial_state,
                   const std::optional<at::Tensor>& cu_seqlens, bool silu,
                   const char* op = "causal_conv1d", const char* state = "initial_state");
};

// The same with upstream gradients, in x's type, and new tensors for the results.
struct CausalConv1dBackwardCall : CausalConv1dCall {
  at::Tensor grad_out, grad_final;
  at::Tensor gx, gweight, gbias, ginitial;
  CausalConv1dGradients gradients;

  CausalConv1dBackwardCall(const std::optional<at::Tensor>& grad_out,
                           const std::optional<at::Tensor>& grad_final_state, const at::Tensor& x,
                           const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           const std::optional<at::Tensor>& initial_state,
                           const std::optional<at::Tensor>& cu_seqlens, bool silu);

  // Gradients of x, weight, bias and initial_state in the inputs' types; of no elements where the
  // input is absent.
  std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> results(
      const at::Tensor& weight_in, const std::optional<at::Tensor>& bias_in) const;
};

// New tensors for out and final_state; sizes may be symbols.
std::tuple<at::Tensor, at::Tensor> causal_conv1d_results(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& cu_seqlens);

// [batch, channels] as a sequence of one token.
at::Tensor one_token(const at::Tensor& x);

// The call of causal_conv1d_step: a token whose state comes and goes in one place.
CausalConv1dCall causal_conv1d_step_call(const at::Tensor& x, const at::Tensor& weight,
                                         const std::optional<at::Tensor>& bias,
                                         const at::Tensor& state, bool silu);

}  // namespace linescan
