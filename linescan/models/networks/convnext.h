// A plain stack of depthwise 7x7 convolutions and MLPs in the manner of ConvNeXt, of LibTorch's layers:
// patches, stages of blocks with 2x2 convolutions between them, the mean over the plane, a classifier.
// Liu et al. 2022, arXiv:2201.03545. Made to be measured against, not tuned.
#pragma once

#include "linescan/models/networks/image_network.h"

namespace linescan {

class ConvNextBlockImpl : public torch::nn::Module {
 public:
  ConvNextBlockImpl(int64_t channels, int64_t hidden, double drop_path);

  // x [batch, height, width, channels] -> the same shape.
  at::Tensor forward(const at::Tensor& x);

 private:
  double drop_path_;
  torch::nn::Conv2d convolution_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear fc1_{nullptr}, fc2_{nullptr};
  at::Tensor scale_;  // [channels]
};
TORCH_MODULE(ConvNextBlock);

class ConvNextImpl : public ImageNetworkImpl {
 public:
  // Throws InvalidArgument as PlainConfig::validate() does.
  explicit ConvNextImpl(const PlainConfig& config);

  // Any size from which no stage becomes empty.
  at::Tensor forward(const at::Tensor& x) override;

 private:
  struct Stage {
    torch::nn::LayerNorm norm{nullptr};  // before the convolution that leads to the stage
    torch::nn::Conv2d downsample{nullptr};
    std::vector<ConvNextBlock> blocks;
  };

  PlainConfig config_;
  torch::nn::Conv2d stem_{nullptr};
  torch::nn::LayerNorm stem_norm_{nullptr}, norm_{nullptr};
  std::vector<Stage> stages_;
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(ConvNext);

}  // namespace linescan
