// Between two stages: half the height and width.
#pragma once

#include <torch/torch.h>

#include <string_view>

#include "linescan/models/layers/norm.h"

namespace linescan {

// v1: norm and product over 2x2 neighbours; v2: 2x2 convolution; v3: 3x3 convolution; none.
enum class DownsampleKind { kMerge, kPatches, kOverlapping, kNone };
DownsampleKind parse_downsample(std::string_view name);

// Rows (or columns) that `size` become; odd sizes are padded by v1 and v3 and cut by v2.
int64_t downsample_output(DownsampleKind kind, int64_t size);

// Parameters of v1: norm.*, reduction.weight; of v2 and v3: 1.{weight,bias}, 3.* (norm).
class DownsampleImpl : public torch::nn::Module {
 public:
  DownsampleImpl(DownsampleKind kind, int64_t inputs, int64_t outputs, NormKind norm);

  // x [batch, height, width, inputs] -> [batch, rows, columns, outputs].
  at::Tensor forward(const at::Tensor& x);

 private:
  torch::nn::Conv2d convolution_{nullptr};
  torch::nn::Linear reduction_{nullptr};
  Norm norm_{nullptr};
};
TORCH_MODULE(Downsample);

}  // namespace linescan
