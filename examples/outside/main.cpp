// Uses the installed package: an operator of linescan::torch and a network of linescan::models.
#include <torch/torch.h>

#include <iostream>

#include "linescan/binding/selective_scan.h"
#include "linescan/models/networks/registry.h"
#include "linescan/models/networks/vmamba.h"
#include "linescan/version.h"

int main() {
  torch::manual_seed(1);
  torch::NoGradGuard no_grad;

  const torch::Tensor u = torch::randn({1, 4, 10}), dt = torch::rand({1, 4, 10});
  const torch::Tensor A = -torch::ones({4, 2}), B = torch::randn({1, 1, 2, 10});
  const auto [out, state] = linescan::selective_scan(u, dt, A, B, B);

  linescan::VMamba network(linescan::named_model("vmamba_fashion"));
  network->eval();
  const torch::Tensor logits = network->forward(torch::randn({2, 1, 28, 28}));

  std::cout << "linescan " << linescan::kVersion << ": scan " << out.sizes() << ", state "
            << state.sizes() << ", logits " << logits.sizes() << '\n';
  return logits.isfinite().all().item<bool>() ? 0 : 1;
}
