// A training step, its readings, and how it treats numbers that are not finite. On the CPU; the same
// code runs on a GPU, where it does not wait between readings.

#include "linescan/train/training_step.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "linescan/models/networks/vmamba.h"

namespace linescan {
namespace {

VMambaConfig tiny_config() {
  VMambaConfig config;
  config.in_channels = 1;
  config.classes = 3;
  config.image_size = 8;
  config.dims = {8};
  config.depths = {1};
  config.stem_stride = 2;
  config.drop_path = 0;
  return config;
}

// A network, its optimizer and a step over them, from a fixed seed.
struct Fixture {
  Recipe recipe;
  VMamba network{nullptr};
  std::optional<AdamW> optimizer;
  std::optional<TrainingStep> step;
  at::Tensor images, labels;

  explicit Fixture(Precision precision = Precision::kFp32, double clip = 1) {
    torch::manual_seed(6);
    recipe.clip = clip;
    network = VMamba(tiny_config());
    network->train();
    optimizer.emplace(*network, recipe);
    step.emplace(recipe, Compute{at::kCPU, precision}, network, *optimizer);
    images = torch::randn({6, 1, 8, 8});
    labels = torch::tensor({0, 1, 2, 0, 1, 2});
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& parameter : network->parameters())
      copies.push_back(parameter.detach().clone());
    return copies;
  }
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!at::equal(a[i], b[i])) return false;
  return true;
}

TEST(TrainingStep, ReadsTheSumsOfSeveralSteps) {
  Fixture one, two;
  double loss = 0;
  int64_t correct = 0;
  for (int i = 0; i < 3; ++i) {
    one.step->run(one.images, one.labels, 1e-2);
    const TrainingStep::Reading reading = one.step->read();
    EXPECT_EQ(reading.good_steps, 1);
    EXPECT_EQ(reading.loss, reading.loss_sum);
    EXPECT_GT(reading.norm, 0);
    loss += reading.loss_sum;
    correct += reading.correct;
    two.step->run(two.images, two.labels, 1e-2);
  }
  const TrainingStep::Reading all = two.step->read();
  EXPECT_EQ(all.good_steps, 3);
  EXPECT_EQ(all.loss_sum, loss);
  EXPECT_EQ(all.correct, correct);
  EXPECT_TRUE(equal(one.weights(), two.weights()));
  EXPECT_EQ(two.step->read().good_steps, 0);
}

TEST(TrainingStep, ClippingBoundsTheUpdateAsIfTheGradientsWereSmaller) {
  Fixture clipped(Precision::kFp32, /*clip=*/1e-3), free(Precision::kFp32, /*clip=*/0);
  clipped.step->run(clipped.images, clipped.labels, 1e-2);
  free.step->run(free.images, free.labels, 1e-2);
  const double norm = free.step->read().norm;
  EXPECT_NEAR(clipped.step->read().norm, norm, 1e-5);
  const at::Tensor small = clipped.optimizer->state().front().second;  // a first moment
  const at::Tensor large = free.optimizer->state().front().second;
  EXPECT_TRUE(at::allclose(small, large * (1e-3 / norm), 1e-4, 1e-9));
}

TEST(TrainingStep, ABadStepAndAllAfterItLeaveTheWeightsAlone) {
  Fixture f;
  f.step->run(f.images, f.labels, 1e-2);
  const std::vector<at::Tensor> before = f.weights();
  const at::Tensor bad = f.images.clone();
  bad[2][0][3][3] = std::nanf("");
  f.step->run(bad, f.labels, 1e-2);
  f.step->run(f.images, f.labels, 1e-2);
  EXPECT_TRUE(equal(f.weights(), before));
  const TrainingStep::Reading reading = f.step->read();
  EXPECT_EQ(reading.good_steps, 1);
  EXPECT_TRUE(std::isfinite(reading.loss_sum));
  EXPECT_TRUE(std::isnan(reading.loss));  // of the bad step, not of the one after it
  f.step->repeat(bad, f.labels);
  bool found = false;
  for (const at::Tensor& parameter : f.network->parameters())
    found |= parameter.grad().isnan().any().item<bool>();
  EXPECT_TRUE(found);
  EXPECT_TRUE(equal(f.weights(), before));
}

TEST(TrainingStep, InFloat16AnOverflowCostsOneUpdateAndHalvesTheScale) {
  Fixture f(Precision::kFp16);
  ASSERT_TRUE(f.step->loss_scale());
  LossScale& scale = *f.step->loss_scale();
  scale.restore(0x1p127, 5);  // times any gradient: infinity
  const std::vector<at::Tensor> before = f.weights();
  f.step->run(f.images, f.labels, 1e-2);
  EXPECT_TRUE(equal(f.weights(), before));
  EXPECT_EQ(scale.value(), 0x1p126);
  EXPECT_EQ(scale.good_updates(), 0);
  scale.restore(1024, 0);
  f.step->run(f.images, f.labels, 1e-2);
  EXPECT_FALSE(equal(f.weights(), before));
  EXPECT_EQ(scale.value(), 1024);
  EXPECT_EQ(scale.good_updates(), 1);
  EXPECT_EQ(f.step->read().good_steps, 2);  // an overflow is no failure
}

TEST(TrainingStep, InFloat16TheScaleDoesNotReachTheUpdate) {
  Fixture f(Precision::kFp16, /*clip=*/0.5), g(Precision::kFp16, /*clip=*/0.5);
  f.step->loss_scale()->restore(256, 0);
  g.step->loss_scale()->restore(4096, 0);
  f.step->run(f.images, f.labels, 1e-2);
  g.step->run(g.images, g.labels, 1e-2);
  EXPECT_NEAR(f.step->read().norm, g.step->read().norm, 1e-2);
  const at::Tensor one = f.optimizer->state().front().second,
                   other = g.optimizer->state().front().second;
  EXPECT_TRUE(at::allclose(one, other, 2e-2, 1e-6));
}

TEST(LossScale, GrowsAfterManyGoodUpdates) {
  LossScale scale(at::kCPU);
  EXPECT_EQ(scale.value(), LossScale::kInitial);
  scale.restore(128, LossScale::kInterval - 1);
  scale.update(torch::zeros({1}));
  EXPECT_EQ(scale.value(), 256);
  EXPECT_EQ(scale.good_updates(), 0);
}

TEST(TrainingStep, AScaleThatHasSunkTooFarIsAFailure) {
  Fixture f(Precision::kFp16);
  f.step->loss_scale()->restore(LossScale::kSmallest / 2, 0);
  f.step->run(f.images, f.labels, 1e-2);
  EXPECT_EQ(f.step->read().good_steps, 0);
}

}  // namespace
}  // namespace linescan
