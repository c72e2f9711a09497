// layer_norm's kernels against the double reference: on a GPU, or on the CPU through the emulator.

#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "linescan/ops/layer_norm/sample.h"
#include "tests/support/gpu_sample.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = LayerNormCase;

// check, plan, forward and backward in a workspace full of NaN; results come back to the sample.
void run(LayerNormSample& s) {
  GpuTensors gpu;
  LayerNormProblem problem = s.problem;
  problem.x = gpu.take(s.x);
  problem.weight = gpu.take(s.weight);
  problem.bias = gpu.take(s.bias);
  problem.out = gpu.take(s.out);
  problem.mean = gpu.take(s.mean);
  problem.rstd = gpu.take(s.rstd);
  const LayerNormGradients gradients = {gpu.take(s.gout), gpu.take(s.skip), gpu.take(s.gx),
                                        gpu.take(s.gweight), gpu.take(s.gbias)};
  check(problem);
  const LayerNormGpuPlan ahead = plan(size_of(problem), Pass::kForward, test_gpu());
  const LayerNormGpuPlan back = plan(size_of(problem, gradients), Pass::kBackward, test_gpu());
  GpuWorkspace workspace(back.workspace_bytes);
  forward(problem, ahead, nullptr, {});
  backward(problem, gradients, back, workspace.data(), {});
  gpu.bring_back();
}

class LayerNormGpu : public ::testing::TestWithParam<Case> {
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  }
};

TEST_P(LayerNormGpu, AgreesWithReference) {
  LayerNormSample sample(GetParam());
  run(sample);
  expect_passed(sample.judge());
}

TEST_P(LayerNormGpu, RepeatsBitByBit) {
  LayerNormSample one(GetParam()), two(GetParam());
  run(one);
  run(two);
  EXPECT_EQ(one.out.bytes(), two.out.bytes());
  EXPECT_EQ(one.gx.bytes(), two.gx.bytes());
  EXPECT_EQ(one.gweight.bytes(), two.gweight.bytes());
}

// Vectors are 8 wide; 1, 3 or 4 a lane; beyond 1024 channels the row is read from memory.
INSTANTIATE_TEST_SUITE_P(
    Sizes, LayerNormGpu,
    ::testing::Values(Case{.channels = 1}, Case{.channels = 7}, Case{.channels = 8},
                      Case{.channels = 24}, Case{.channels = 33}, Case{.channels = 40},
                      Case{.channels = 48}, Case{.rows = 300}, Case{.channels = 128},
                      Case{.channels = 192}, Case{.channels = 384}, Case{.channels = 768},
                      Case{.channels = 1024}, Case{.channels = 1032}, Case{.channels = 3000},
                      Case{.rows = 1, .channels = 96}, Case{.rows = 0}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndOptions, LayerNormGpu,
    ::testing::Values(Case{.dtype = DType::kBFloat16, .out_dtype = DType::kBFloat16, .skip = true},
                      Case{.dtype = DType::kFloat16, .out_dtype = DType::kFloat16, .skip = true},
                      Case{.dtype = DType::kFloat32, .out_dtype = DType::kBFloat16},
                      Case{.dtype = DType::kBFloat16, .out_dtype = DType::kFloat32, .skip = true},
                      Case{
                          .channels = 192, .dtype = DType::kFloat16, .out_dtype = DType::kBFloat16},
                      Case{.affine = false, .skip = true},
                      Case{.channels = 50, .affine = false, .skip = true}, Case{.offset = 100},
                      Case{.channels = 1030, .offset = 100},
                      Case{.dtype = DType::kBFloat16, .out_dtype = DType::kFloat32, .misalign = 1},
                      Case{.skip = true, .misalign = 3}));

TEST(LayerNormPlan, KeepsTheRowInRegistersWhereItFits) {
  const Gpu& gpu = find_gpu("h100");
  const auto vectors = [&](int64_t channels, bool aligned) {
    return plan({.rows = 1000, .channels = channels, .vectors = aligned}, Pass::kForward, gpu)
        .vectors;
  };
  for (int64_t channels : {96, 192, 384, 768}) EXPECT_EQ(vectors(channels, true), 3) << channels;
  EXPECT_EQ(vectors(1024, true), 4);
  EXPECT_EQ(vectors(1032, true), 0);
  EXPECT_EQ(vectors(100, true), 0);
  EXPECT_EQ(vectors(96, false), 0);
}

TEST(LayerNormCheck, NamesWhatDoesNotFit) {
  LayerNormSample sample(Case{});
  LayerNormProblem p = sample.problem;
  p.weight.shape = {95};
  EXPECT_THROW(check(p), InvalidArgument);
  p = sample.problem;
  p.bias.dtype = DType::kBFloat16;
  EXPECT_THROW(check(p), InvalidArgument);
  p = sample.problem;
  p.x.dtype = DType::kFloat64;
  EXPECT_THROW(check(p), Unsupported);
}

}  // namespace
}  // namespace linescan::testing
