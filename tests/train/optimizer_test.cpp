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

at::Tensor one(double value) { return torch::full({1}, value); }

// An update with plain gradients.
void update(AdamW& optimizer, double lr) {
  optimizer.step(torch::full({}, lr, at::kDouble), one(1), one(0));
}

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
      update(optimizer, lr);
    }
    EXPECT_LT(largest_difference(module->weight, weight.weight), kTolerance);
    EXPECT_LT(largest_difference(module->bias, bias.weight), kTolerance);
    EXPECT_LT(largest_difference(module->a_logs, a_logs.weight), kTolerance);
  }
}

TEST(AdamW, GradientNormIsGlobal) {
  Small module;
  AdamW optimizer(*module, recipe());
  EXPECT_EQ(optimizer.gradient_norm().item<double>(), 0);
  module->weight.mutable_grad() = torch::full({3, 5}, 3.0);
  module->bias.mutable_grad() = torch::full({7}, 4.0);  // A_logs has none
  EXPECT_NEAR(optimizer.gradient_norm().item<double>(), std::sqrt(15 * 9 + 7 * 16), 1e-5);
  module->bias.mutable_grad() = torch::full({7}, std::nanf(""));
  EXPECT_TRUE(std::isnan(optimizer.gradient_norm().item<double>()));
}

TEST(AdamW, DividesGradientsAndSkipsUpdates) {
  torch::manual_seed(4);
  Small divided, plain;
  AdamW optimizer(*divided, recipe()), other(*plain, recipe());
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < plain->parameters().size(); ++i)
      plain->parameters()[i].copy_(divided->parameters()[i]);
  }
  const auto give = [](Small& module, double factor) {
    for (at::Tensor parameter : module->parameters())
      parameter.mutable_grad() = torch::full_like(parameter, 0.25 * factor);
  };
  const at::Tensor lr = torch::full({}, 0.1, at::kDouble);
  give(divided, 1);
  optimizer.step(lr, one(1), one(1));  // as if it had never been
  give(divided, 8);
  optimizer.step(lr, one(8), one(0));
  give(plain, 1);
  other.step(lr, one(1), one(0));
  const NamedTensors got = optimizer.state(), expected = other.state();
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(torch::equal(got[i].second, expected[i].second)) << got[i].first;
  EXPECT_TRUE(torch::equal(divided->weight, plain->weight));
}

TEST(AdamW, ParametersWithoutGradientStay) {
  Small module;
  AdamW optimizer(*module, recipe());
  const at::Tensor before = module->weight.detach().clone();
  module->bias.mutable_grad() = torch::ones({7});
  update(optimizer, 0.1);
  EXPECT_TRUE(torch::equal(module->weight.detach(), before));
  optimizer.clear_gradients();
  EXPECT_FALSE(module->bias.grad().defined());
}

TEST(AdamW, StateIsItsMemory) {
  torch::manual_seed(2);
  Small first, second;
  AdamW optimizer(*first, recipe()), other(*second, recipe());
  const auto give_gradients = [](Small& module, int seed) {
    torch::manual_seed(seed);
    for (at::Tensor parameter : module->parameters())
      parameter.mutable_grad() = torch::randn_like(parameter);
  };
  give_gradients(first, 5);
  update(optimizer, 0.1);
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < first->parameters().size(); ++i)
      second->parameters()[i].copy_(first->parameters()[i]);
  }
  const NamedTensors from = optimizer.state(), to = other.state();
  ASSERT_EQ(from.size(), 7u);  // m and v of three parameters, updates
  for (std::size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(from[i].first, to[i].first);
    at::Tensor(to[i].second).copy_(from[i].second);
  }
  give_gradients(first, 6);
  give_gradients(second, 6);
  update(optimizer, 0.1);
  update(other, 0.1);
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
