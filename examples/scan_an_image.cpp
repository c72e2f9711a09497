// Scans a feature map along four routes with ss2d and asks for the gradients: the operator that
// every VMamba layer is built around, called on plain tensors.
#include <torch/torch.h>

#include <iostream>
#include <vector>

#include "linescan/binding/ss2d.h"

int main() {
  torch::manual_seed(1);
  const int64_t channels = 8, states = 4, rank = 2;
  const std::vector<int64_t> routes = {0, 1, 6, 7};  // along rows and columns, to and fro
  const int64_t K = routes.size();

  auto parameter = [](torch::Tensor value) { return value.requires_grad_(); };
  torch::Tensor x = parameter(torch::randn({2, channels, 14, 14}));
  torch::Tensor x_proj = parameter(torch::randn({K, rank + 2 * states, channels}) * 0.3);
  torch::Tensor dt_proj = parameter(torch::randn({K, channels, rank}) * 0.3);
  torch::Tensor dt_bias = parameter(torch::full({K, channels}, -5.0));
  torch::Tensor A_log = parameter(torch::arange(1.0, states + 1.0).log().repeat({K * channels, 1}));
  torch::Tensor D = parameter(torch::ones({K * channels}));

  torch::Tensor y = linescan::ss2d(x, x_proj, {}, dt_proj, dt_bias, A_log, D, routes);
  y.square().mean().backward();

  std::cout << "input   " << x.sizes() << "\noutput  " << y.sizes() << '\n';
  std::cout << "gradient norms: x " << x.grad().norm().item<float>() << ", A_log "
            << A_log.grad().norm().item<float>() << ", dt_proj "
            << dt_proj.grad().norm().item<float>() << '\n';

  // A scan is causal along each route, and the four routes reach every pixel: a change in one
  // corner is felt in the opposite one.
  torch::NoGradGuard no_grad;
  torch::Tensor touched = x.clone();
  touched.select(2, 0).select(2, 0) += 1.0;
  torch::Tensor moved = linescan::ss2d(touched, x_proj, {}, dt_proj, dt_bias, A_log, D, routes) - y;
  const float felt = moved.select(2, 13).select(2, 13).abs().max().item<float>();
  std::cout << "the far corner moved by " << felt << '\n';
  return felt > 0 && torch::isfinite(x.grad()).all().item<bool>() ? 0 : 1;
}
