// The exponential moving average of a network's weights (EMA), kept in a second network of the
// same configuration so that it can be evaluated and saved like any other.
#pragma once

#include <torch/nn/module.h>

#include <vector>

namespace linescan {

class WeightAverage {
 public:
  // `average` and `network` must have the same parameters and buffers; the average starts as a copy
  // of the network. Both must outlive this object.
  WeightAverage(const torch::nn::Module& network, torch::nn::Module& average);

  // average = decay average + (1 - decay) network; buffers (running statistics, counters) are
  // copied, for an average of counters means nothing.
  void update(double decay);

 private:
  std::vector<at::Tensor> source_, average_;
  std::vector<at::Tensor> source_buffers_, average_buffers_;
};

}  // namespace linescan
