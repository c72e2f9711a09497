#include "linescan/train/average.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <c10/core/GradMode.h>

namespace linescan {

WeightAverage::WeightAverage(const torch::nn::Module& network, torch::nn::Module& average)
    : source_(network.parameters()),
      average_(average.parameters()),
      source_buffers_(network.buffers()),
      average_buffers_(average.buffers()) {
  for (at::Tensor& tensor : average_) tensor.requires_grad_(false);
  update(0);
}

void WeightAverage::update(double decay) {
  const at::NoGradGuard no_grad;
  at::_foreach_lerp_(average_, source_, 1 - decay);
  if (!source_buffers_.empty()) at::_foreach_copy_(average_buffers_, source_buffers_);
}

}  // namespace linescan
