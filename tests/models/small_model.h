// Networks small enough to run many times, and random images for them.
#pragma once

#include <torch/torch.h>

#include "linescan/models/networks/vmamba.h"

namespace linescan {

inline VMambaConfig small_config() {
  VMambaConfig config;
  config.in_channels = 2;
  config.classes = 3;
  config.image_size = 16;
  config.dims = {8};
  config.depths = {1, 2};
  config.states = 2;
  config.mlp_ratio = 2;
  config.drop_path = 0;
  return config;
}

// A network in evaluation mode whose weights depend on the seed alone.
inline VMamba seeded_model(const VMambaConfig& config, uint64_t seed = 1) {
  torch::manual_seed(seed);
  VMamba model(config);
  model->eval();
  return model;
}

inline at::Tensor random_image(int64_t batch, int64_t channels, int64_t height, int64_t width) {
  return torch::randn({batch, channels, height, width});
}

inline int64_t count_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

}  // namespace linescan
