// Drop path, activation checkpointing, patch merging and the initial values of the scan.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linescan/base/error.h"
#include "linescan/models/layers/checkpoint.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/layers/downsample.h"
#include "linescan/models/layers/drop_path.h"
#include "linescan/models/layers/scan_init.h"
#include "tests/models/small_model.h"

namespace linescan {
namespace {

TEST(DropPath, DropsWholeSamplesAndScalesTheRest) {
  torch::manual_seed(3);
  const at::Tensor residual = torch::randn({4000, 2, 3});
  const at::Tensor result =
      add_branch(residual, torch::ones({4000, 2, 3}), 0.25, /*training=*/true) - residual;
  const at::Tensor first = result.select(1, 0).select(1, 0);
  EXPECT_TRUE(at::allclose(result, first.view({-1, 1, 1}).expand_as(result), 1e-4, 1e-5));
  const at::Tensor kept = first > 0.5;
  EXPECT_TRUE(at::allclose(first, kept.to(at::kFloat) / 0.75, 1e-4, 1e-5));
  // 4000 draws: the deviation of the share is 0.007.
  EXPECT_NEAR(kept.to(at::kFloat).mean().item<float>(), 0.75, 0.035);
}

TEST(DropPath, IsDecidedByTheSeedAndOffInEvaluation) {
  const at::Tensor residual = torch::randn({64, 5}), branch = torch::randn({64, 5});
  torch::manual_seed(4);
  const at::Tensor a = add_branch(residual, branch.clone(), 0.5, true);
  const at::Tensor other = add_branch(residual, branch.clone(), 0.5, true);
  torch::manual_seed(4);
  EXPECT_TRUE(at::equal(add_branch(residual, branch.clone(), 0.5, true), a));
  EXPECT_FALSE(at::equal(other, a));
  EXPECT_TRUE(at::equal(add_branch(residual, branch.clone(), 0.5, false), residual + branch));
}

VMambaConfig stochastic_config() {
  VMambaConfig config = small_config();
  config.drop_path = 0.5;
  config.drop = 0.2;
  return config;
}

// Loss and gradients of a training step, from the same seed.
std::vector<at::Tensor> training_step(VMamba& model, const at::Tensor& x) {
  model->train();
  model->zero_grad();
  torch::manual_seed(11);
  const at::Tensor loss = model->forward(x).square().sum();
  loss.backward();
  std::vector<at::Tensor> results = {loss.detach()};
  for (const at::Tensor& parameter : model->parameters())
    results.push_back(parameter.grad().clone());
  for (const at::Tensor& buffer : model->buffers()) results.push_back(buffer.clone());
  results.push_back(torch::rand({3}));  // the generator must end in the same state
  return results;
}

TEST(Checkpoint, ChangesNeitherLossNorGradientsNorBuffers) {
  for (const char* norm : {"ln", "bn"}) {
    VMambaConfig config = stochastic_config();
    config.norm = norm;
    VMamba plain = seeded_model(config);
    config.use_checkpoint = true;
    VMamba checkpointed = seeded_model(config);
    const at::Tensor x = random_image(6, 2, 16, 16);
    const auto expected = training_step(plain, x), got = training_step(checkpointed, x);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(at::equal(got[i], expected[i])) << norm << ' ' << i;
  }
}

TEST(Checkpoint, GradientsReachParametersWhenTheInputNeedsNone) {
  auto layer = std::make_shared<torch::nn::LinearImpl>(4, 2);
  const at::Tensor x = torch::randn({3, 4});
  const auto run = [&](const at::Tensor& input) { return layer->forward(input); };
  const auto gradients =
      torch::autograd::grad({checkpointed(layer, run, x).sum()}, layer->parameters());
  EXPECT_TRUE(at::allclose(gradients[0], x.sum(0).expand({2, 4}), 1e-5, 1e-6));
}

TEST(Checkpoint, FrozenParametersAndSecondDerivatives) {
  auto layer = std::make_shared<torch::nn::LinearImpl>(4, 2);
  layer->bias.set_requires_grad(false);
  const at::Tensor x = torch::randn({3, 4}).requires_grad_();
  const auto run = [&](const at::Tensor& input) { return layer->forward(input).square(); };
  checkpointed(layer, run, x).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_FALSE(layer->bias.grad().defined());
  EXPECT_THROW(torch::autograd::grad({checkpointed(layer, run, x).sum()}, {x}, {},
                                     /*retain_graph=*/true, /*create_graph=*/true),
               Unsupported);
}

TEST(Downsample, MergingTakesNeighboursDownTheColumnsFirst) {
  Downsample merge(DownsampleKind::kMerge, 1, 4, NormKind::kLayer);
  torch::NoGradGuard no_grad;
  const auto parameters = merge->named_parameters();
  parameters["reduction.weight"].copy_(torch::eye(4));
  // One 2x2 square and, padded with zeros, the right column of a 2 x 3 image.
  const at::Tensor x = torch::tensor({{0.f, 2.f, 4.f}, {1.f, 3.f, 5.f}}).view({1, 2, 3, 1});
  const at::Tensor expected = torch::tensor({{0.f, 1.f, 2.f, 3.f}, {4.f, 5.f, 0.f, 0.f}});
  EXPECT_TRUE(at::allclose(merge->forward(x).view({2, 4}),
                           at::layer_norm(expected, {4}, {}, {}, kNormEpsilon), 1e-5, 1e-6));
}

TEST(ScanInit, V0StartsWithStepsInRange) {
  torch::manual_seed(5);
  const ScanParameters p = make_scan_parameters(ScanInit::kV0, 4, 100, 3, 4);
  const at::Tensor steps = at::softplus(p.dt_proj_bias);
  EXPECT_GE(steps.min().item<float>(), 0.00099f);
  EXPECT_LE(steps.max().item<float>(), 0.1001f);
  EXPECT_NEAR(at::log(steps).mean().item<float>(), std::log(0.01), 0.2);
  EXPECT_TRUE(at::allclose(at::exp(p.A_log), torch::tensor({1.f, 2.f, 3.f}).expand({400, 3})));
  EXPECT_LE(p.dt_proj_weight.abs().max().item<float>(), 0.5f);
  EXPECT_LE(p.x_proj_weight.abs().max().item<float>(), 0.1f);
  EXPECT_TRUE(at::equal(p.D, torch::ones({400})));
  const ScanParameters constant = make_scan_parameters(ScanInit::kV0Constant, 4, 100, 3, 4);
  EXPECT_TRUE(at::equal(constant.dt_proj_weight, torch::full({4, 100, 4}, 0.5)));
}

TEST(ScanInit, V1IsNormalAndV2Uniform) {
  torch::manual_seed(6);
  const ScanParameters normal = make_scan_parameters(ScanInit::kV1, 4, 200, 2, 3);
  EXPECT_NEAR(normal.A_log.std().item<float>(), 1, 0.1);
  EXPECT_NEAR(normal.dt_proj_bias.std().item<float>(), 0.1, 0.01);
  EXPECT_NEAR(normal.dt_proj_weight.mean().item<float>(), 0, 0.01);
  const ScanParameters uniform = make_scan_parameters(ScanInit::kV2, 4, 200, 2, 3);
  EXPECT_TRUE(at::equal(uniform.A_log, torch::zeros({800, 2})));
  EXPECT_GE(uniform.dt_proj_bias.min().item<float>(), 0);
  EXPECT_LE(uniform.dt_proj_weight.max().item<float>(), 0.1f);
  EXPECT_NEAR(uniform.dt_proj_weight.mean().item<float>(), 0.05, 0.005);
}

TEST(Dense, LinearLayersStartNarrow) {
  torch::manual_seed(7);
  const torch::nn::Linear layer = make_linear(200, 100, true);
  EXPECT_NEAR(layer->weight.std().item<float>(), 0.02, 0.001);
  EXPECT_TRUE(at::equal(layer->bias, torch::zeros({100})));
}

TEST(Dense, ConvolutionsAnswerInTheSameLayout) {
  torch::NoGradGuard no_grad;
  for (int64_t channels : {1, 3})
    for (int64_t size : {1, 5}) {
      torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(channels, 4, 3).padding(1));
      const at::Tensor x = torch::randn({2, size, size, channels});
      const at::Tensor y = convolve(convolution, x);
      EXPECT_TRUE(y.is_contiguous());
      EXPECT_TRUE(at::allclose(y.permute({0, 3, 1, 2}),
                               convolution->forward(x.permute({0, 3, 1, 2}).contiguous()), 1e-5,
                               1e-6));
    }
}

}  // namespace
}  // namespace linescan
