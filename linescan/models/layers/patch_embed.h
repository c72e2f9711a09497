// The stem: an image becomes a grid of channels.
#pragma once

#include <torch/torch.h>

#include <string_view>

#include "linescan/models/layers/norm.h"

namespace linescan {

// v1: one convolution whose kernel is its stride. v2: two overlapping 3x3 convolutions, the first
// to half the channels, with norm and GELU between.
enum class StemKind { kPatches, kOverlapping };
StemKind parse_stem(std::string_view name);

// Rows (or columns) that `size` pixels become.
int64_t stem_output(StemKind kind, int64_t stride, int64_t size);
// Strides of the two convolutions of v2: stride 4 is 2 x 2, 2 is 2 x 1, 1 is 1 x 1.
int64_t first_stride(int64_t stride);
int64_t second_stride(int64_t stride);

struct PatchEmbedOptions {
  StemKind kind = StemKind::kOverlapping;
  int64_t in_channels = 3;
  int64_t channels = 0;
  int64_t stride = 4;  // 4, 2 or 1
  bool normalise = true;
  NormKind norm = NormKind::kLayer;
};

// Parameters 0.{weight,bias} and 2.* (norm); v2 also 5.{weight,bias} and 7.* (norm).
class PatchEmbedImpl : public torch::nn::Module {
 public:
  explicit PatchEmbedImpl(const PatchEmbedOptions& options);

  // x [batch, in_channels, height, width] -> [batch, rows, columns, channels].
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d first_{nullptr}, second_{nullptr};
  Norm first_norm_{nullptr}, second_norm_{nullptr};
};
TORCH_MODULE(PatchEmbed);

}  // namespace linescan
