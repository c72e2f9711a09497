// A VMamba of one's own: describe it with a config, teach it to tell which half of an image is
// brighter, and see the loss fall. Some twenty lines of plain LibTorch.
#include <torch/torch.h>

#include <iostream>

#include "linescan/models/networks/vmamba.h"

int main() {
  torch::manual_seed(1);
  at::set_num_threads(2);

  linescan::VMambaConfig config;
  config.in_channels = 1;
  config.classes = 2;
  config.image_size = 16;
  config.dims = {16, 32};
  config.depths = {1, 1};
  config.stem_stride = 2;
  config.drop_path = 0;
  linescan::VMamba network(config);
  torch::optim::AdamW optimizer(network->parameters(), torch::optim::AdamWOptions(3e-3));

  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    const torch::Tensor labels = torch::randint(0, 2, {32});  // 0: left half is brighter, 1: right
    torch::Tensor images = 0.5 * torch::randn({32, 1, 16, 16});
    for (int i = 0; i < 32; ++i) images[i].narrow(2, labels[i].item<int64_t>() * 8, 8) += 1.0;

    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(network->forward(images), labels);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();

    last = loss.item<double>();
    if (step == 0) first = last;
    if (step % 10 == 0) std::cout << "step " << step << "  loss " << last << '\n';
  }
  std::cout << "loss " << first << " -> " << last << '\n';
  return last < 0.5 * first ? 0 : 1;
}
