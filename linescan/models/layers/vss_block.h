// One block of VMamba: a residual SS2D layer, then a residual MLP; either may be absent.
#pragma once

#include <torch/torch.h>

#include "linescan/models/layers/mlp.h"
#include "linescan/models/layers/norm.h"
#include "linescan/models/layers/ss2d_layer.h"

namespace linescan {

struct VssBlockOptions {
  Ss2dOptions op;  // inner == 0: no SS2D layer
  MlpOptions mlp;  // hidden == 0: no MLP
  NormKind norm = NormKind::kLayer;
  bool post_norm = false;   // x + norm(f(x)) instead of x + f(norm(x))
  double drop_path = 0;     // probability that a branch is left out for a sample in training
  bool checkpoint = false;  // recompute the block in the backward pass
};

// Parameters norm.*, op.*, norm2.*, mlp.*.
class VssBlockImpl : public torch::nn::Module {
 public:
  explicit VssBlockImpl(const VssBlockOptions& options);

  // x [batch, height, width, channels] -> the same shape.
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor run(const at::Tensor& x);
  template <typename Layer>
  at::Tensor add_layer(const at::Tensor& x, Norm& norm, Layer& layer);

  VssBlockOptions options_;
  Norm norm_{nullptr}, norm2_{nullptr};
  Ss2dLayer op_{nullptr};
  Mlp mlp_{nullptr};
};
TORCH_MODULE(VssBlock);

}  // namespace linescan
