// A small language model: an embedding, blocks of norm -> Gated DeltaNet -> norm -> gated MLP with
// residuals around both halves, a norm and a head.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "linescan/models/layers/gated_delta_net.h"
#include "linescan/models/layers/mlp.h"
#include "linescan/models/layers/rms_norm.h"
#include "linescan/models/networks/language_model_config.h"

namespace linescan {

// What the layers remember of the tokens that they have seen; empty before the first call.
using LanguageModelCache = std::vector<GatedDeltaNetCache>;

// Parameters embedding.weight [vocabulary, hidden], blocks.N.{norm1,layer,norm2,mlp}.*, norm.weight,
// head.weight [vocabulary, hidden].
class LanguageModelImpl : public torch::nn::Module {
 public:
  // Throws InvalidArgument as the options of the network and of its layers do.
  LanguageModelImpl(const LanguageModelConfig& config, int64_t vocabulary);

  // tokens [batch, length] int64 -> logits of the next token [batch, length, vocabulary]. With a
  // `cache` the sequences go on where the call before has left them.
  at::Tensor forward(const at::Tensor& tokens, LanguageModelCache* cache = nullptr);

  int64_t vocabulary() const { return embedding_->weight.size(0); }

 private:
  struct Block {
    RmsNorm norm1{nullptr}, norm2{nullptr};
    GatedDeltaNet layer{nullptr};
    Mlp mlp{nullptr};  // null: none
  };

  torch::nn::Embedding embedding_{nullptr};
  std::vector<Block> blocks_;
  RmsNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(LanguageModel);

}  // namespace linescan
