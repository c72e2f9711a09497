// causal_conv1d's kernels against the double reference: on a GPU, or on the CPU through the emulator.

#include <gtest/gtest.h>

#include "linescan/ops/causal_conv1d/sample.h"
#include "tests/support/gpu_sample.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = CausalConv1dCase;

// check, plan, forward and backward in a workspace full of NaN; results come back to the sample.
// `in_place`: the final state takes the initial one's memory.
void run(CausalConv1dSample& s, bool in_place = false) {
  GpuTensors gpu;
  CausalConv1dProblem problem = s.problem;
  problem.x = gpu.take(s.x);
  problem.weight = gpu.take(s.weight);
  problem.bias = gpu.take(s.bias);
  problem.initial_state = gpu.take(s.initial);
  problem.out = gpu.take(s.out);
  problem.final_state = in_place ? problem.initial_state : gpu.take(s.final_state);
  SampleTensor offsets({static_cast<int64_t>(s.offsets.size())}, DType::kFloat64);
  if (problem.offsets) {  // eight bytes each, whatever they mean
    std::memcpy(offsets.view().data, s.offsets.data(), s.offsets.size() * sizeof(int64_t));
    problem.offsets = gpu.take(offsets).as<int64_t>();
  }
  const CausalConv1dGradients gradients = {gpu.take(s.gout),  gpu.take(s.gfinal),
                                           gpu.take(s.gx),    gpu.take(s.gweight),
                                           gpu.take(s.gbias), gpu.take(s.ginitial)};
  check(problem);
  check_gpu(problem);
  const auto ahead = plan(gpu_size_of(problem), Pass::kForward, test_gpu());
  const auto back = plan(gpu_size_of(problem, gradients), Pass::kBackward, test_gpu());
  GpuWorkspace workspace(back.workspace_bytes);
  if (!in_place) backward(problem, gradients, back, workspace.data(), {});
  forward(problem, ahead, nullptr, {});
  gpu.bring_back();
}

class CausalConv1dGpu : public ::testing::TestWithParam<Case> {
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  }
};

TEST_P(CausalConv1dGpu, AgreesWithReference) {
  CausalConv1dSample sample(GetParam());
  run(sample);
  expect_passed(sample.judge());
}

TEST_P(CausalConv1dGpu, RepeatsBitByBit) {
  CausalConv1dSample one(GetParam()), two(GetParam());
  run(one);
  run(two);
  EXPECT_EQ(one.out.bytes(), two.out.bytes());
  EXPECT_EQ(one.gx.bytes(), two.gx.bytes());
  EXPECT_EQ(one.gweight.bytes(), two.gweight.bytes());
}

TEST(CausalConv1dGpuStates, AdvanceInPlace) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  for (const int64_t length : {1, 2, 40}) {
    const Case c{.length = length, .initial = true};
    CausalConv1dSample apart(c), in_place(c);
    run(apart);
    run(in_place, true);
    EXPECT_EQ(apart.out.bytes(), in_place.out.bytes()) << length;
    EXPECT_EQ(apart.final_state.bytes(), in_place.initial.bytes()) << length;
  }
}

// Threads own four channels or one, and runs of 8 to 32 tokens.
INSTANTIATE_TEST_SUITE_P(
    Sizes, CausalConv1dGpu,
    ::testing::Values(Case{}, Case{.batch = 1, .length = 1, .channels = 1, .initial = true},
                      Case{.batch = 5, .length = 1, .channels = 12, .initial = true},
                      Case{.length = 2, .initial = true}, Case{.length = 8, .initial = true},
                      Case{.length = 17, .channels = 12, .initial = true},
                      Case{.batch = 1, .length = 70, .channels = 5, .initial = true},
                      Case{.batch = 1, .length = 9, .channels = 260, .initial = true},
                      Case{.batch = 150, .length = 3, .channels = 4, .initial = true},
                      Case{.batch = 2, .length = 700, .channels = 4}, Case{.batch = 0},
                      Case{.length = 0, .initial = true}));

INSTANTIATE_TEST_SUITE_P(
    Packed, CausalConv1dGpu,
    ::testing::Values(
        Case{.batch = 1, .length = 40, .offsets = {0, 40}},
        Case{.batch = 1, .length = 80, .initial = true, .offsets = {0, 1, 1, 3, 8, 64, 67, 80}},
        Case{.batch = 1, .length = 80, .width = 3, .offsets = {0, 0, 31, 33, 80, 80}},
        Case{.batch = 1, .length = 50, .initial = true, .offsets = {3, 20, 45}},
        Case{.batch = 1, .length = 0, .initial = true, .offsets = {0, 0, 0}},
        Case{.batch = 1, .length = 9, .offsets = {0}}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndOptions, CausalConv1dGpu,
    ::testing::Values(Case{.bias = false}, Case{.silu = false, .initial = true},
                      Case{.length = 20, .width = 2, .initial = true},
                      Case{.length = 20, .width = 3, .initial = true},
                      Case{.length = 1, .width = 2, .initial = true},
                      Case{
                          .length = 20, .channels = 24, .dtype = DType::kBFloat16, .initial = true},
                      Case{.length = 20, .channels = 24, .dtype = DType::kFloat16, .initial = true},
                      Case{.length = 1, .channels = 24, .dtype = DType::kBFloat16, .initial = true},
                      Case{.length = 20, .channels = 7, .dtype = DType::kBFloat16, .initial = true},
                      Case{.length = 20, .channels = 24, .dtype = DType::kFloat16, .misalign = 1},
                      Case{.length = 20, .layout = Layout::kChannelsLast, .initial = true},
                      Case{.length = 20, .layout = Layout::kGaps}, Case{.misalign = 1}));

// A kernel that followed them would be caught by the address sanitizer, or on a GPU by memcheck.
TEST(CausalConv1dGpuOffsets, ThatLieTouchNothingElse) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  CausalConv1dSample sample(
      Case{.batch = 1, .length = 40, .initial = true, .offsets = {-5, 12, 7, 1000, 3, INT64_MAX}});
  run(sample);
  for (const SampleTensor* tensor :
       {&sample.out, &sample.final_state, &sample.gx, &sample.ginitial})
    EXPECT_TRUE(tensor->margins_intact());
}

TEST(CausalConv1dGpuPlan, TakesVectorsWhereTheyFitAndShortensRunsToFillTheDevice) {
  const Gpu& gpu = find_gpu("h100");
  const CausalConv1dSize large{.batch = 8, .length = 8192, .channels = 2048, .width = 4};
  EXPECT_EQ(plan({large, true}, Pass::kForward, gpu).run, 32);
  EXPECT_EQ(plan({large, true}, Pass::kForward, gpu).vector, 4);
  EXPECT_EQ(plan({large, false}, Pass::kForward, gpu).vector, 1);
  const CausalConv1dSize small{.batch = 1, .length = 64, .channels = 256, .width = 4};
  EXPECT_EQ(plan({small, true}, Pass::kForward, gpu).run, 8);
  // The sums of a backward pass are one round of blocks.
  EXPECT_LE(plan({large, true}, Pass::kBackward, gpu).grid(), 4 * gpu.multiprocessors);
}

}  // namespace
}  // namespace linescan::testing
