#include "linescan/models/networks/convnext.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>

#include "linescan/base/error.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/layers/drop_path.h"
#include "linescan/models/layers/part.h"
#include "linescan/models/module_watch.h"

namespace linescan {
namespace {

constexpr int64_t kKernel = 7;
constexpr double kFirstScale = 1e-6;  // of a block's branch, as published

torch::nn::LayerNorm make_norm(int64_t channels) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({channels}).eps(1e-6));
}

// A convolution whose kernel is its stride.
torch::nn::Conv2d make_patches(int64_t inputs, int64_t outputs, int64_t size) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, size).stride(size));
}

}  // namespace

ConvNextBlockImpl::ConvNextBlockImpl(int64_t channels, int64_t hidden, double drop_path)
    : drop_path_(drop_path) {
  convolution_ = register_module(
      "dwconv", torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, kKernel)
                                      .padding(kKernel / 2)
                                      .groups(channels)));
  norm_ = register_module("norm", make_norm(channels));
  fc1_ = register_module("fc1", make_linear(channels, hidden, /*bias=*/true));
  fc2_ = register_module("fc2", make_linear(hidden, channels, /*bias=*/true));
  scale_ = register_parameter("gamma", torch::full({channels}, kFirstScale));
}

at::Tensor ConvNextBlockImpl::forward(const at::Tensor& x) {
  const at::Tensor normed = norm_->forward(convolve(convolution_, x));
  const PartScope part(Part::kMlp);
  const at::Tensor y = fc2_->forward(at::gelu(fc1_->forward(normed)));
  return add_branch(x, y * scale_, drop_path_, is_training());
}

ConvNextImpl::ConvNextImpl(const PlainConfig& config) : config_(config) {
  config.validate();
  stem_ =
      register_module("stem", make_patches(config.in_channels, config.channels(0), config.patch));
  stem_norm_ = register_module("stem_norm", make_norm(config.channels(0)));
  const auto stages = register_module("stages", std::make_shared<torch::nn::Module>());
  const int64_t total = std::accumulate(config.depths.begin(), config.depths.end(), int64_t{0});
  int64_t made = 0;
  for (int64_t i = 0; i < config.stages(); ++i) {
    const auto place =
        stages->register_module(std::to_string(i), std::make_shared<torch::nn::Module>());
    Stage& stage = stages_.emplace_back();
    const int64_t channels = config.channels(i);
    if (i > 0) {
      stage.norm = place->register_module("norm", make_norm(config.channels(i - 1)));
      stage.downsample =
          place->register_module("downsample", make_patches(config.channels(i - 1), channels, 2));
    }
    const auto blocks = place->register_module("blocks", std::make_shared<torch::nn::Module>());
    for (int64_t j = 0; j < config.depths[i]; ++j, ++made) {
      const double share = total > 1 ? static_cast<double>(made) / (total - 1) : 0.0;
      stage.blocks.push_back(blocks->register_module(
          std::to_string(j), ConvNextBlock(channels, config.hidden(i), config.drop_path * share)));
    }
  }
  const int64_t features = config.channels(config.stages() - 1);
  norm_ = register_module("norm", make_norm(features));
  head_ = register_module("head", make_linear(features, config.classes, /*bias=*/true));
}

at::Tensor ConvNextImpl::forward(const at::Tensor& x) {
  if (x.dim() != 4 || x.size(1) != config_.in_channels)
    throw_error<InvalidArgument>("convnext: x has shape [{}], expected [batch, {}, height, width]",
                                 fmt::join(x.sizes(), ", "), config_.in_channels);
  stage_shapes(config_, x.size(2), x.size(3));
  at::Tensor y = run_module(
      "stem", [&] { return stem_norm_->forward(convolve(stem_, channels_last(x).contiguous())); });
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    Stage& stage = stages_[i];
    if (stage.downsample)
      y = run_module(fmt::format("stages.{}.downsample", i),
                     [&] { return convolve(stage.downsample, stage.norm->forward(y)); });
    for (std::size_t j = 0; j < stage.blocks.size(); ++j)
      y = run_module(fmt::format("stages.{}.blocks.{}", i, j),
                     [&] { return stage.blocks[j]->forward(y); });
  }
  return run_module("classifier", [&] { return head_->forward(norm_->forward(y.mean({1, 2}))); });
}

}  // namespace linescan
