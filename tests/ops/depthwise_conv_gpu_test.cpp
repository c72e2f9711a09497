// depthwise_conv's kernels against the double reference: on a GPU, or on the CPU through the
// emulator.

#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "linescan/ops/depthwise_conv/sample.h"
#include "tests/support/gpu_sample.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = DepthwiseConvCase;

// check, plan, forward and backward in a workspace full of NaN; results come back to the sample.
void run(DepthwiseConvSample& s) {
  GpuTensors gpu;
  DepthwiseConvProblem problem = s.problem;
  problem.x = gpu.take(s.x);
  problem.weight = gpu.take(s.weight);
  problem.bias = gpu.take(s.bias);
  problem.out = gpu.take(s.out);
  const DepthwiseConvGradients gradients = {gpu.take(s.gout), gpu.take(s.gx), gpu.take(s.gweight),
                                            gpu.take(s.gbias)};
  check(problem);
  const DepthwiseConvGpuPlan ahead = plan(size_of(problem), Pass::kForward, test_gpu());
  const DepthwiseConvGpuPlan back = plan(size_of(problem, gradients), Pass::kBackward, test_gpu());
  GpuWorkspace workspace(back.workspace_bytes);
  forward(problem, ahead, nullptr, {});
  backward(problem, gradients, back, workspace.data(), {});
  gpu.bring_back();
}

class DepthwiseConvGpu : public ::testing::TestWithParam<Case> {
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  }
};

TEST_P(DepthwiseConvGpu, AgreesWithReference) {
  DepthwiseConvSample sample(GetParam());
  run(sample);
  expect_passed(sample.judge());
}

TEST_P(DepthwiseConvGpu, RepeatsBitByBit) {
  DepthwiseConvSample one(GetParam()), two(GetParam());
  run(one);
  run(two);
  EXPECT_EQ(one.out.bytes(), two.out.bytes());
  EXPECT_EQ(one.gx.bytes(), two.gx.bytes());
  EXPECT_EQ(one.gweight.bytes(), two.gweight.bytes());
}

// Threads own four channels or one, two rows or one, and strips of 7 columns and more.
INSTANTIATE_TEST_SUITE_P(
    Sizes, DepthwiseConvGpu,
    ::testing::Values(Case{}, Case{.height = 1, .width = 1}, Case{.height = 1, .width = 40},
                      Case{.height = 7, .width = 7, .channels = 12},
                      Case{.height = 14, .width = 14, .channels = 4},
                      Case{.batch = 1, .height = 9, .width = 130, .channels = 5},
                      Case{.batch = 1, .height = 6, .width = 56, .channels = 96},
                      Case{.batch = 1, .height = 2, .width = 3, .channels = 260},
                      Case{.batch = 1, .height = 3, .width = 2, .channels = 33},
                      Case{.batch = 70, .height = 3, .width = 3, .channels = 4}, Case{.batch = 0},
                      Case{.height = 0}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndOptions, DepthwiseConvGpu,
    ::testing::Values(Case{.bias = false}, Case{.silu = false}, Case{.bias = false, .silu = false},
                      Case{.channels = 24, .dtype = DType::kBFloat16},
                      Case{.channels = 24, .dtype = DType::kFloat16},
                      Case{.channels = 24, .dtype = DType::kBFloat16, .silu = false},
                      Case{.channels = 7, .dtype = DType::kBFloat16},
                      Case{.channels = 24, .dtype = DType::kFloat16, .misalign = 1},
                      Case{.misalign = 1}));

TEST(DepthwiseConvPlan, FillsTheDeviceAndSpreadsThePacks) {
  const Gpu& gpu = find_gpu("h100");
  const auto cut = [&](int64_t side, int64_t channels) {
    return plan({.batch = 128,
                 .height = side,
                 .width = side,
                 .channels = channels,
                 .dtype = DType::kBFloat16},
                Pass::kForward, gpu)
        .convolution;
  };
  EXPECT_EQ(cut(56, 96).packs_a_block, 24);
  EXPECT_EQ(cut(28, 192).packs_a_block, 24);
  EXPECT_EQ(cut(14, 384).packs_a_block, 32);
  EXPECT_EQ(cut(7, 768).packs_a_block, 32);
  for (const ConvStrips& c : {cut(56, 96), cut(28, 192), cut(14, 384), cut(7, 768)})
    EXPECT_GE(c.segment, 7);
}

TEST(DepthwiseConvPlan, FitsTheSharedMemoryOfEveryDevice) {
  Gpu small = find_gpu("l4");
  small.shared_per_block = 48 << 10;
  for (const Gpu& gpu : {find_gpu("h100"), find_gpu("v100"), small})
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const DepthwiseConvGpuPlan p =
          plan({.batch = 8, .height = 56, .width = 56, .channels = 96}, pass, gpu);
      EXPECT_LE(p.convolution.shared_bytes, gpu.shared_per_block);
      EXPECT_LE(p.sums.shared_bytes, gpu.shared_per_block);
      EXPECT_GE(p.convolution.strips_a_block, 1);
    }
}

TEST(DepthwiseConvCheck, NamesWhatDoesNotFit) {
  DepthwiseConvSample sample(Case{});
  DepthwiseConvProblem p = sample.problem;
  p.weight.shape = {8, 9};
  EXPECT_THROW(check(p), InvalidArgument);
  p = sample.problem;
  p.bias.shape = {7};
  EXPECT_THROW(check(p), InvalidArgument);
  p = sample.problem;
  p.x.dtype = DType::kFloat64;
  EXPECT_THROW(check(p), Unsupported);
}

}  // namespace
}  // namespace linescan::testing
