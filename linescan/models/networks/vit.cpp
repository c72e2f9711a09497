#include "linescan/models/networks/vit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "linescan/base/error.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/layers/drop_path.h"
#include "linescan/models/layers/part.h"
#include "linescan/models/module_watch.h"

namespace linescan {
namespace {

torch::nn::LayerNorm make_norm(int64_t channels) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({channels}));
}

}  // namespace

VitBlockImpl::VitBlockImpl(int64_t channels, int64_t heads, int64_t hidden, double drop_path)
    : heads_(heads), drop_path_(drop_path) {
  norm1_ = register_module("norm1", make_norm(channels));
  qkv_ = register_module("qkv", make_linear(channels, 3 * channels, /*bias=*/true));
  proj_ = register_module("proj", make_linear(channels, channels, /*bias=*/true));
  norm2_ = register_module("norm2", make_norm(channels));
  fc1_ = register_module("fc1", make_linear(channels, hidden, /*bias=*/true));
  fc2_ = register_module("fc2", make_linear(hidden, channels, /*bias=*/true));
}

at::Tensor VitBlockImpl::attend(const at::Tensor& x) {
  const PartScope part(Part::kAttention);
  const int64_t batch = x.size(0), patches = x.size(1), channels = x.size(2);
  const std::vector<at::Tensor> qkv = qkv_->forward(x)
                                          .view({batch, patches, 3, heads_, channels / heads_})
                                          .permute({2, 0, 3, 1, 4})
                                          .unbind(0);  // [batch, heads, patches, channels / heads]
  const at::Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
  return proj_->forward(y.transpose(1, 2).reshape({batch, patches, channels}));
}

at::Tensor VitBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor y = add_branch(x, attend(norm1_->forward(x)), drop_path_, is_training());
  const PartScope part(Part::kMlp);
  const at::Tensor hidden = at::gelu(fc1_->forward(norm2_->forward(y)));
  return add_branch(y, fc2_->forward(hidden), drop_path_, is_training());
}

VitImpl::VitImpl(const PlainConfig& config) : config_(config) {
  config.validate();
  const int64_t channels = config.channels(0), patch = config.patch;
  const StageShape grid = stage_shapes(config, config.image_size, config.image_size).front();
  patch_embed_ = register_module(
      "patch_embed",
      torch::nn::Conv2d(
          torch::nn::Conv2dOptions(config.in_channels, channels, patch).stride(patch)));
  pos_embed_ = register_parameter(
      "pos_embed", torch::normal(0.0, 0.02, {1, channels, grid.height, grid.width}, std::nullopt));
  const auto blocks = register_module("blocks", std::make_shared<torch::nn::Module>());
  for (int64_t i = 0; i < grid.blocks; ++i) {
    const double share = grid.blocks > 1 ? static_cast<double>(i) / (grid.blocks - 1) : 0.0;
    blocks_.push_back(blocks->register_module(
        std::to_string(i),
        VitBlock(channels, config.heads, config.hidden(0), config.drop_path * share)));
  }
  norm_ = register_module("norm", make_norm(channels));
  head_ = register_module("head", make_linear(channels, config.classes, /*bias=*/true));
}

at::Tensor VitImpl::embed(const at::Tensor& x) {
  const at::Tensor grid = patch_embed_->forward(x);  // [batch, channels, rows, columns]
  at::Tensor embedding = pos_embed_;
  if (embedding.size(2) != grid.size(2) || embedding.size(3) != grid.size(3))
    embedding = at::upsample_bicubic2d(embedding, {grid.size(2), grid.size(3)},
                                       /*align_corners=*/false);
  return (grid + embedding).flatten(2).transpose(1, 2).contiguous();
}

at::Tensor VitImpl::forward(const at::Tensor& x) {
  if (x.dim() != 4 || x.size(1) != config_.in_channels)
    throw_error<InvalidArgument>("vit: x has shape [{}], expected [batch, {}, height, width]",
                                 fmt::join(x.sizes(), ", "), config_.in_channels);
  stage_shapes(config_, x.size(2), x.size(3));
  at::Tensor y = run_module("patch_embed", [&] { return embed(x); });
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    y = run_module(fmt::format("blocks.{}", i), [&] { return blocks_[i]->forward(y); });
  return run_module("classifier", [&] { return head_->forward(norm_->forward(y).mean(1)); });
}

}  // namespace linescan
