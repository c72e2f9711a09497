#include "linescan/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linescan/train/average.h"
#include "linescan/train/recipe.h"

namespace linescan {
namespace {

// A matrix and a bias under the names that decide about weight decay, and a scan's marked matrix.
struct SmallImpl : torch::nn::Module {
  SmallImpl() {
    weight = register_parameter("weight", torch::randn({3, 5}));
    bias = register_parameter("bias", torch::randn({7}));
    a_logs = register_parameter("A_logs", torch::randn({4, 2}));
    running = register_buffer("running", torch::zeros({2}));
  }
  at::Tensor weight, bias, a_logs, running;
};
TORCH_MODULE(Small);

Recipe recipe() {
  Recipe recipe;
  recipe.weight_decay = 0.1;
  recipe.clip = 0;
  recipe.beta1 = 0.8;
  recipe.beta2 = 0.95;
  recipe.eps = 1e-6;
  return recipe;
}

// The formula of optimizer.h in double, an element at a time.
struct Reference {
  at::Tensor weight, m, v;
  double decay;
  int t = 0;

  Reference(const at::Tensor& start, double decay)
      : weight(start.detach().to(at::kDouble).clone()),
        m(at::zeros_like(weight)),
        v(at::zeros_like(weight)),
        decay(decay) {}

  void step(const at::Tensor& gradient, double lr, const Recipe& recipe) {
    ++t;
    const at::Tensor g = gradient.to(at::kDouble);
    m = recipe.beta1 * m + (1 - recipe.beta1) * g;
    v = recipe.beta2 * v + (1 - recipe.beta2) * g * g;
    weight = weight * (1 - lr * decay);
    weight = weight - lr * (m / (1 - std::pow(recipe.beta1, t))) /
                          ((v / (1 - std::pow(recipe.beta2, t))).sqrt() + recipe.eps);
  }
};

// A few roundings of numbers near 1 a step.
constexpr double kTolerance = 20 * 0x1p-23;

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.detach().to(at::kDouble) - b).abs().max().item<double>();
}

TEST(AdamW, FollowsItsFormula) {
  torch::manual_seed(1);
  for (const bool marks : {true, false}) {
    Recipe settings = recipe();
    settings.decay_marks = marks;
    Small module;
    AdamW optimizer(*module, settings);
    Reference weight(module->weight, 0.1), bias(module->bias, 0);
    Reference a_logs(module->a_logs, marks ? 0 : 0.1);
    for (int step = 0; step < 10; ++step) {
      const double lr = 0.1 / (1 + step);
      for (at::Tensor* tensor : {&module->weight, &module->bias, &module->a_logs})
        tensor->mutable_grad() = torch::randn_like(*tensor);
      weight.step(module->weight.grad(), lr, settings);
      bias.step(module->bias.grad(), lr, settings);
      a_logs.step(module->a_logs.grad(), lr, settings);
      optimizer.step(lr);
    }
    EXPECT_LT(largest_difference(module->weight, weight.weight), kTolerance);
    EXPECT_LT(largest_difference(module->bias, bias.weight), kTolerance);
    EXPECT_LT(largest_difference(module->a_logs, a_logs.weight), kTolerance);
  }
}

TEST(AdamW, ClipsTheGlobalNorm) {
  Recipe settings = recipe();
  settings.clip = 2;
  Small module;
  AdamW optimizer(*module, settings);
  module->weight.mutable_grad() = torch::full({3, 5}, 3.0);
  module->bias.mutable_grad() = torch::full({7}, 4.0);  // A_logs has none
  const double norm = std::sqrt(15 * 9 + 7 * 16);
  EXPECT_NEAR(optimizer.clip_gradients(), norm, 1e-5);
  EXPECT_NEAR(module->weight.grad()[0][0].item<double>(), 3 * 2 / norm, 1e-6);
  EXPECT_NEAR(optimizer.clip_gradients(), 2, 1e-5);
  module->bias.mutable_grad() = torch::full({7}, std::nanf(""));
  EXPECT_TRUE(std::isnan(optimizer.clip_gradients()));
}

TEST(AdamW, SmallGradientsStayAsTheyAre) {
  Recipe settings = recipe();
  settings.clip = 100;
  Small module;
  AdamW optimizer(*module, settings);
  module->weight.mutable_grad() = torch::full({3, 5}, 3.0);
  optimizer.clip_gradients();
  EXPECT_TRUE(torch::equal(module->weight.grad(), torch::full({3, 5}, 3.0)));
}

TEST(AdamW, ParametersWithoutGradientStay) {
  Small module;
  AdamW optimizer(*module, recipe());
  const at::Tensor before = module->weight.detach().clone();
  module->bias.mutable_grad() = torch::ones({7});
  optimizer.step(0.1);
  EXPECT_TRUE(torch::equal(module->weight.detach(), before));
  optimizer.clear_gradients();
  EXPECT_FALSE(module->bias.grad().defined());
}

TEST(AdamW, StateIsItsMemory) {
  torch::manual_seed(2);
  Small first, second;
  AdamW one(*first, recipe()), two(*second, recipe());
  const auto give_gradients = [](Small& module, int seed) {
    torch::manual_seed(seed);
    for (at::Tensor parameter : module->parameters())
      parameter.mutable_grad() = torch::randn_like(parameter);
  };
  give_gradients(first, 5);
  one.step(0.1);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < first->parameters().size(); ++i)
      second->parameters()[i].copy_(first->parameters()[i]);
  }
  const NamedTensors from = one.state(), to = two.state();
  ASSERT_EQ(from.size(), 7u);  // m and v of three parameters, updates
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].first, to[i].first);
    at::Tensor(to[i].second).copy_(from[i].second);
  }
  give_gradients(first, 6);
  give_gradients(second, 6);
  one.step(0.1);
  two.step(0.1);
  for (std::size_t i = 0; i < first->parameters().size(); ++i)
    EXPECT_TRUE(torch::equal(first->parameters()[i], second->parameters()[i]));
}

TEST(WeightAverage, FollowsItsFormulaAndCopiesBuffers) {
  torch::manual_seed(3);
  Small network, average;
  WeightAverage ema(*network, *average);
  EXPECT_TRUE(torch::equal(network->weight, average->weight));
  const at::Tensor start = network->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    network->weight.add_(1);
    network->running.fill_(5);
  }
  ema.update(0.75);
  EXPECT_LT((average->weight - (start + 0.25)).abs().max().item<double>(), 4 * 0x1p-23);
  EXPECT_TRUE(torch::equal(average->running, network->running));
  EXPECT_FALSE(average->weight.requires_grad());
  EXPECT_TRUE(network->weight.requires_grad());
}

}  // namespace
}  // namespace linescan
