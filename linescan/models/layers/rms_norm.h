// Root-mean-square normalisation (Zhang and Sennrich 2019), alone or with a gate behind it.
#pragma once

#include <torch/torch.h>

namespace linescan {

// Parameter weight [channels] = 1.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t channels, double epsilon);

  // x [..., channels] -> x / sqrt(mean x^2 + epsilon) * weight, the mean in float32.
  at::Tensor forward(const at::Tensor& x);
  // forward(x) * SiLU(gate); gate has the shape of x.
  at::Tensor forward_gated(const at::Tensor& x, const at::Tensor& gate);

 private:
  at::Tensor weight_;
  double epsilon_;
};
TORCH_MODULE(RmsNorm);

}  // namespace linescan
