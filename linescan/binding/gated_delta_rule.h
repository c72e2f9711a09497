// gated_delta_rule for LibTorch programs; the same operators as torch.ops.linescan.* in Python.
// Definition, shapes and gradients: linescan/ops/gated_delta_rule/README.md.
//
//   GatedDeltaRuleOptions options;
//   options.cu_seqlens = cu_seqlens;
//   auto [o, final_state] = linescan::gated_delta_rule(q, k, v, g, beta, options);
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <tuple>

namespace linescan {

// What q, k, g and beta go through on their way in; the same for whole sequences and single steps.
// P: float32, or float64 where q is.
struct GatedDeltaRuleStepOptions {
  std::optional<double> scale;        // of q; K^-0.5
  std::optional<at::Tensor> A_log;    // P [value_heads]: g <- -exp(A_log) softplus(g + dt_bias)
  std::optional<at::Tensor> dt_bias;  // P [value_heads], with A_log only
  bool qk_l2norm = false;             // x <- x / sqrt(sum x^2 + 1e-6), for q and k
  bool beta_sigmoid = false;          // beta <- sigmoid(beta)
  bool allow_neg_eigval = false;      // beta <- 2 sigmoid(beta); with beta_sigmoid only
  bool state_v_first = false;         // states are [.., V, K] instead of [.., K, V]
};

struct GatedDeltaRuleOptions : GatedDeltaRuleStepOptions {
  std::optional<at::Tensor> initial_state;  // P [sequences, value_heads, K, V]; zero
  std::optional<at::Tensor> cu_seqlens;     // int32 or int64 [sequences + 1]: packed sequences
  bool reverse = false;                     // from the last token to the first
  std::string mode = "auto";                // or "chunk", "recurrent"
  bool output_final_state = true;  // else it is a tensor of no elements, and nothing is stored
};

// q, k [batch, length, heads, K]; v [batch, length, value_heads, V], all of one type T; g, beta
// [batch, length, value_heads], g of type P (float32, or float64 where T is), beta T or P. heads
// divide value_heads; value head j reads q/k head j / (value_heads / heads). With cu_seqlens batch
// is 1 and sequence i has the tokens cu_seqlens[i] .. cu_seqlens[i + 1] - 1; without, sequences =
// batch. Returns (o [batch, length, value_heads, V] of type T, final_state of initial_state's shape and
// type P). Differentiable in q, k, v, g, beta, initial_state, A_log and dt_bias. Throws c10::Error that
// names the argument, what was got and what was expected.
std::tuple<at::Tensor, at::Tensor> gated_delta_rule(const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v, const at::Tensor& g,
                                                    const at::Tensor& beta,
                                                    const GatedDeltaRuleOptions& options = {});

// One token for each of `tokens` sequences: q, k [tokens, heads, K]; v, result [tokens, value_heads,
// V]; g, beta [tokens, value_heads]. Token i advances pool[slots[i]] in place; pool is P [slots,
// value_heads, K, V], contiguous; slots int32 or int64 [tokens], no slot twice. A slot outside the pool
// stands for no sequence: its output is zero and no state changes. Not differentiable.
at::Tensor gated_delta_rule_step(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const at::Tensor& g, const at::Tensor& beta, at::Tensor& pool,
                                 const at::Tensor& slots,
                                 const GatedDeltaRuleStepOptions& options = {});

}  // namespace linescan
