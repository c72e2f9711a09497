// The feed-forward half of a block: two products over the channels with an activation between.
#pragma once

#include <torch/torch.h>

#include "linescan/models/layers/activation.h"
#include "linescan/models/layers/norm.h"

namespace linescan {

struct MlpOptions {
  int64_t channels = 0;
  int64_t hidden = 0;
  bool gated = false;  // fc1 gives value and gate: fc2(value * activation(gate))
  Activation activation = Activation::kGelu;
  double drop = 0;
};

// Parameters fc1.{weight,bias}, fc2.{weight,bias}.
class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const MlpOptions& options);

  // x [..., channels] -> the same shape.
  at::Tensor forward(const at::Tensor& x);
  // residual + forward(x), a pass cheaper.
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& x);
  // forward(norm(x)), keeping x and the product with fc1 alone for the backward pass.
  Branch forward_normed(const at::Tensor& x, Norm& norm);

 private:
  at::Tensor hidden(const at::Tensor& x);  // everything before fc2

  MlpOptions options_;
  torch::nn::Linear fc1_, fc2_;
};
TORCH_MODULE(Mlp);

}  // namespace linescan
