// The Gated DeltaNet layer (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464): a recurrence over
// tokens whose state is a matrix per head, with the parameters, names and initial values of the layer
// of that name in flash-linear-attention, so that weights go from one to the other.
//
//   q, k, v  = SiLU(causal_conv1d(x W_q)), likewise k, v         q, k normalised to length 1 per head
//   g        = -exp(A_log) softplus(x W_a + dt_bias)             beta = sigmoid(x W_b)
//   o        = gated_delta_rule(q, k, v, g, beta)                linescan/ops/gated_delta_rule
//   y        = (RMSNorm(o) * weight * SiLU(x W_g)) W_o           norm and weight per head
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>

#include "linescan/models/layers/rms_norm.h"
#include "linescan/models/layers/short_convolution.h"

namespace linescan {

constexpr int64_t kSplitBatchAsNeeded = -1;  // GatedDeltaNetOptions::split_batch

struct GatedDeltaNetOptions {
  int64_t hidden_size = 2048;     // channels of input and output
  double expand_v = 2;            // size of a value head as a multiple of head_dim
  int64_t head_dim = 256;         // size of a query or key head
  int64_t num_heads = 6;          // of queries and keys
  int64_t num_v_heads = 0;        // of values, a multiple of num_heads; 0: num_heads
  bool use_gate = true;           // the gate behind the norm
  bool use_short_conv = true;     // without it q, k and v still go through SiLU
  bool allow_neg_eigval = false;  // beta up to 2
  int64_t conv_size = 4;          // 2 to 4
  bool conv_bias = false;
  double norm_eps = 1e-5;
  std::string mode = "auto";  // of gated_delta_rule: or "chunk", "recurrent"
  // Sequences of a batch that go through the layer at once at most, one part after the other, for a
  // batch whose intermediate results would not fit into memory. 0: all. kSplitBatchAsNeeded: all,
  // and only where memory runs out fewer (for_each_part). Packed sequences are no batch: they come
  // at once. What is kept for gradients is that of all parts together.
  int64_t split_batch = 0;

  int64_t value_heads() const { return num_v_heads > 0 ? num_v_heads : num_heads; }
  int64_t value_dim() const {
    return static_cast<int64_t>(static_cast<double>(head_dim) * expand_v);
  }

  // Throws InvalidArgument naming the option, its value and what is allowed.
  void validate() const;
};

// Calls run(first, count) for the parts of a batch, in order, as `split_batch` says; an empty batch
// is one part. As needed: a part for which memory runs out (is_out_of_memory) comes again
// smaller, and so do those behind it: of as many sequences as the refusal says would fit, but no
// fewer than half, because what else a part holds gets smaller, too. What refuses a single sequence
// goes through.
void for_each_part(int64_t batch, int64_t split_batch,
                   const std::function<void(int64_t first, int64_t count)>& run);

// What a layer remembers of the tokens that it has seen; empty before the first call. Copies share the
// tensors, which single tokens change in place: clone them to go on in two ways.
struct GatedDeltaNetCache {
  at::Tensor recurrent_state;  // [sequences, value_heads, V, K]
  at::Tensor q_conv, k_conv,
      v_conv;          // [sequences, channels, conv_size - 1], with convolutions only
  int64_t offset = 0;  // tokens seen, padding included
};

// Parameters {q,k,v,a,b,o}_proj.weight, A_log, dt_bias [value_heads], o_norm.weight; with a gate
// g_proj.weight; with convolutions {q,k,v}_conv1d.weight [channels, 1, conv_size] and perhaps .bias.
class GatedDeltaNetImpl : public torch::nn::Module {
 public:
  explicit GatedDeltaNetImpl(const GatedDeltaNetOptions& options);

  // x [batch, length, hidden_size] -> the same shape. A `mask` [batch, length] is 0 where x is padding,
  // which is skipped wherever it stands: results are 0 there. With a `cache` the sequences go on where
  // the call before has left them, one token a call if wanted, and the cache moves on; the results are
  // those of one call with all tokens. A call that throws leaves the cache as it was, but for the
  // states of a single token, which move in place; those are not tried again in parts as needed.
  // A GPU is waited for if there is a mask, once a part. Throws InvalidArgument for another shape
  // of x or mask, and for a cache of another number of sequences.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask = {},
                     GatedDeltaNetCache* cache = nullptr);

  // Sequences packed along the length: x [1, length, hidden_size], cu_seqlens [sequences + 1] as
  // gated_delta_rule has them.
  at::Tensor forward_packed(const at::Tensor& x, const at::Tensor& cu_seqlens,
                            GatedDeltaNetCache* cache = nullptr);

 private:
  void check_cache(const GatedDeltaNetCache* cache, int64_t sequences) const;
  at::Tensor run_parts(const at::Tensor& x, const at::Tensor& mask, GatedDeltaNetCache* cache);
  at::Tensor run(const at::Tensor& x, const at::Tensor& cu_seqlens, GatedDeltaNetCache* cache);
  at::Tensor recurrence(const at::Tensor& x, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const at::Tensor& cu_seqlens, bool step,
                        GatedDeltaNetCache* cache);

  GatedDeltaNetOptions options_;
  torch::nn::Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, a_proj_{nullptr},
      b_proj_{nullptr}, g_proj_{nullptr}, o_proj_{nullptr};
  ShortConvolution q_conv1d_{nullptr}, k_conv1d_{nullptr}, v_conv1d_{nullptr};
  RmsNorm o_norm_{nullptr};
  at::Tensor A_log_, dt_bias_;
};
TORCH_MODULE(GatedDeltaNet);

}  // namespace linescan
