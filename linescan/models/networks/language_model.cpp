#include "linescan/models/networks/language_model.h"

#include <fmt/format.h>

#include <cmath>
#include <string>

#include "linescan/base/error.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/module_watch.h"

namespace linescan {
namespace {

GatedDeltaNetOptions layer_options(const LanguageModelConfig& config) {
  return {.hidden_size = config.hidden,
          .expand_v = config.expand_v,
          .head_dim = config.head_dim,
          .num_heads = config.heads,
          .num_v_heads = config.value_heads,
          .use_gate = config.gate,
          .use_short_conv = config.short_conv,
          .allow_neg_eigval = config.allow_neg_eigval,
          .conv_size = config.conv_size};
}

}  // namespace

LanguageModelImpl::LanguageModelImpl(const LanguageModelConfig& config, int64_t vocabulary) {
  config.validate();
  if (vocabulary < 1)
    throw_error<InvalidArgument>("model option vocabulary is {}, expected 1 or more", vocabulary);
  embedding_ = register_module("embedding", torch::nn::Embedding(vocabulary, config.hidden));
  {
    const at::NoGradGuard no_grad;
    embedding_->weight.normal_(0, 0.02);
  }
  const GatedDeltaNetOptions options = layer_options(config);
  const auto norm = [&] { return RmsNorm(config.hidden, options.norm_eps); };
  const auto hidden =
      static_cast<int64_t>(std::llround(config.mlp_ratio * static_cast<double>(config.hidden)));
  const auto blocks = register_module("blocks", torch::nn::ModuleList());
  for (int64_t number = 0; number < config.layers; ++number) {
    const auto parent = std::make_shared<torch::nn::Module>();
    Block& block = blocks_.emplace_back();
    block.norm1 = parent->register_module("norm1", norm());
    block.layer = parent->register_module("layer", GatedDeltaNet(options));
    if (hidden > 0) {
      block.norm2 = parent->register_module("norm2", norm());
      block.mlp = parent->register_module("mlp", Mlp(MlpOptions{.channels = config.hidden,
                                                                .hidden = hidden,
                                                                .gated = true,
                                                                .activation = Activation::kSilu}));
    }
    blocks->push_back(parent);
  }
  norm_ = register_module("norm", norm());
  head_ = register_module("head", make_linear(config.hidden, vocabulary, /*bias=*/false));
}

at::Tensor LanguageModelImpl::forward(const at::Tensor& tokens, LanguageModelCache* cache) {
  if (tokens.dim() != 2 || tokens.scalar_type() != at::kLong)
    throw_error<InvalidArgument>(
        "language_model: tokens have {} dimensions and type {}, expected int64 [batch, length]",
        tokens.dim(), c10::toString(tokens.scalar_type()));
  if (cache) cache->resize(blocks_.size());
  at::Tensor x = run_module("embedding", [&] { return embedding_->forward(tokens); });
  for (std::size_t number = 0; number < blocks_.size(); ++number) {
    Block& block = blocks_[number];
    x = run_module(fmt::format("blocks.{}.layer", number), [&] {
      return x +
             block.layer->forward(block.norm1->forward(x), {}, cache ? &(*cache)[number] : nullptr);
    });
    if (block.mlp)
      x = run_module(fmt::format("blocks.{}.mlp", number),
                     [&] { return block.mlp->add_to(x, block.norm2->forward(x)); });
  }
  return run_module("head", [&] { return head_->forward(norm_->forward(x)); });
}

}  // namespace linescan
