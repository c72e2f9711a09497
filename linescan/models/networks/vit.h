// A plain vision transformer of LibTorch's layers, with its fused attention: patches, a learned position
// embedding, blocks of attention and MLP behind layer norms, the mean over the patches, a classifier.
// Dosovitskiy et al. 2021, arXiv:2010.11929. Made to be measured against, not tuned.
#pragma once

#include "linescan/models/networks/image_network.h"

namespace linescan {

class VitBlockImpl : public torch::nn::Module {
 public:
  VitBlockImpl(int64_t channels, int64_t heads, int64_t hidden, double drop_path);

  // x [batch, patches, channels] -> the same shape.
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor attend(const at::Tensor& x);

  int64_t heads_;
  double drop_path_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr}, fc1_{nullptr}, fc2_{nullptr};
};
TORCH_MODULE(VitBlock);

class VitImpl : public ImageNetworkImpl {
 public:
  // Throws InvalidArgument as PlainConfig::validate() does.
  explicit VitImpl(const PlainConfig& config);

  // Any size of at least a patch; the position embedding is resized for others than image_size.
  at::Tensor forward(const at::Tensor& x) override;

 private:
  at::Tensor embed(const at::Tensor& x);  // -> [batch, patches, channels]

  PlainConfig config_;
  torch::nn::Conv2d patch_embed_{nullptr};
  at::Tensor pos_embed_;  // [1, channels, rows, columns]
  std::vector<VitBlock> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Vit);

}  // namespace linescan
