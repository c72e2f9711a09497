// causal_conv1d on the CPU against the double reference: every option, type, layout and instruction
// set, packed sequences, sizes that straddle vectors, blocks and tiles.

#include <gtest/gtest.h>

#include <thread>

#include "linescan/base/error.h"
#include "linescan/device/simd_target.h"
#include "linescan/ops/causal_conv1d/sample.h"
#include "tests/support/judging.h"
#include "tests/support/messages.h"

namespace linescan::testing {
namespace {

using Case = CausalConv1dCase;
using Sample = CausalConv1dSample;

class CausalConv1d : public ::testing::TestWithParam<Case> {};

TEST_P(CausalConv1d, AgreesWithReferenceOnEveryInstructionSet) {
  const std::string best = simd_target();
  for (const std::string& target : simd_targets()) {
    SCOPED_TRACE(target);
    force_simd_target(target);
    Sample sample(GetParam());
    sample.run();
    expect_passed(sample.judge());
  }
  force_simd_target(best);
}

// Vector widths are 1, 8 and 16, blocks 64 channels, tiles 32 tokens.
INSTANTIATE_TEST_SUITE_P(
    Sizes, CausalConv1d,
    ::testing::Values(Case{}, Case{.batch = 1, .length = 1, .channels = 1, .initial = true},
                      Case{.length = 2, .initial = true}, Case{.length = 3, .initial = true},
                      Case{.length = 31, .channels = 15}, Case{.length = 32, .channels = 16},
                      Case{.length = 33, .channels = 17, .initial = true},
                      Case{.length = 65, .channels = 63}, Case{.length = 64, .channels = 64},
                      Case{.batch = 1, .length = 100, .channels = 130, .initial = true},
                      Case{.batch = 90, .length = 3, .channels = 5, .initial = true},
                      Case{.batch = 1, .length = 2500, .channels = 3}, Case{.batch = 0},
                      Case{.length = 0, .initial = true}));

INSTANTIATE_TEST_SUITE_P(
    Options, CausalConv1d,
    ::testing::Values(Case{.bias = false}, Case{.silu = false},
                      Case{.bias = false, .silu = false, .initial = true},
                      Case{.length = 40, .width = 2, .initial = true},
                      Case{.length = 40, .width = 3, .initial = true},
                      Case{.length = 1, .width = 2, .initial = true},
                      Case{.length = 1, .width = 3, .silu = false, .initial = true}));

// Empty sequences, sequences shorter than the kernel, bounds on tile edges, tokens of none.
INSTANTIATE_TEST_SUITE_P(
    Packed, CausalConv1d,
    ::testing::Values(
        Case{.batch = 1, .length = 40, .offsets = {0, 40}},
        Case{.batch = 1, .length = 80, .initial = true, .offsets = {0, 1, 1, 3, 32, 64, 67, 80}},
        Case{.batch = 1, .length = 80, .width = 3, .offsets = {0, 0, 31, 33, 80, 80}},
        Case{.batch = 1, .length = 50, .initial = true, .offsets = {3, 20, 45}},
        Case{.batch = 1, .length = 0, .initial = true, .offsets = {0, 0, 0}},
        Case{.batch = 1, .length = 9, .offsets = {0}}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndLayouts, CausalConv1d,
    ::testing::Values(
        Case{.length = 41, .channels = 37, .layout = Layout::kChannelsLast, .initial = true},
        Case{.length = 41, .channels = 37, .layout = Layout::kGaps},
        Case{.length = 41, .channels = 37, .misalign = 1},
        Case{.length = 41, .channels = 37, .dtype = DType::kBFloat16, .initial = true},
        Case{.length = 41, .channels = 37, .dtype = DType::kFloat16, .initial = true},
        Case{.length = 41,
             .channels = 37,
             .dtype = DType::kBFloat16,
             .layout = Layout::kChannelsLast,
             .misalign = 1},
        Case{.length = 41, .channels = 37, .dtype = DType::kFloat64, .initial = true}));

TEST(CausalConv1dOperator, ResultsDoNotDependOnThreads) {
  const Case c{.batch = 3, .length = 700, .channels = 70, .initial = true};  // enough for 7 threads
  Sample one(c), many(c);
  one.run();
  many.run(
      [](int64_t count, const ParallelBody& body) {
        std::vector<std::jthread> threads;
        for (int64_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i, i + 1); });
      },
      7);
  EXPECT_EQ(one.out.bytes(), many.out.bytes());
  EXPECT_EQ(one.gx.bytes(), many.gx.bytes());
  EXPECT_EQ(one.gweight.bytes(), many.gweight.bytes());
  EXPECT_EQ(one.gbias.bytes(), many.gbias.bytes());
}

TEST(CausalConv1dOperator, PiecesChainToTheWholeInPlace) {
  const Case c{.length = 50, .channels = 9, .initial = true};
  Sample whole(c), pieces(c);
  whole.run();
  const auto cut = [](TensorView view, int64_t begin, int64_t length) {
    view.data = static_cast<char*>(view.data) + begin * view.strides[1] * size_of(view.dtype);
    view.shape[1] = length;
    return view;
  };
  for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 1}, {1, 2}, {3, 1}, {4, 46}}) {
    CausalConv1dProblem piece = pieces.problem;
    for (TensorView* view : {&piece.x, &piece.out}) *view = cut(*view, begin, length);
    piece.final_state = piece.initial_state;
    const auto plan = linescan::plan(size_of(piece), Pass::kForward, 1);
    Workspace workspace(plan.workspace_bytes);
    forward(piece, plan, workspace.data(), serial_for);
  }
  EXPECT_EQ(pieces.out.bytes(), whole.out.bytes());
  EXPECT_EQ(pieces.initial.bytes(), whole.final_state.bytes());
}

TEST(CausalConv1dOperator, PackedSequencesAreSequencesOnTheirOwn) {
  const Case c{.batch = 3, .length = 20, .channels = 10, .initial = true};
  Case packed = c;
  packed.batch = 1;
  packed.length = 60;
  packed.offsets = {0, 20, 40, 60};
  Sample apart(c), together(packed);  // the same numbers in the same order
  apart.run();
  together.run();
  EXPECT_EQ(apart.out.bytes(), together.out.bytes());
  EXPECT_EQ(apart.gx.bytes(), together.gx.bytes());
  EXPECT_EQ(apart.ginitial.bytes(), together.ginitial.bytes());
}

TEST(CausalConv1dOperator, OffsetsThatLieTouchNothingElse) {
  Sample sample(
      Case{.batch = 1, .length = 40, .initial = true, .offsets = {-5, 12, 7, 1000, 3, INT64_MAX}});
  sample.run();
  for (const SampleTensor* tensor :
       {&sample.out, &sample.final_state, &sample.gx, &sample.ginitial})
    EXPECT_TRUE(tensor->margins_intact());
}

TEST(CausalConv1dOperator, UpstreamGradientsMayBeAbsent) {
  const Case c{.length = 40, .initial = true};
  Sample no_state(c), no_out(c);
  no_state.gradients.final_state = {};
  no_state.run();
  expect_passed(no_state.judge());
  no_out.gradients.out = {};
  no_out.run();
  expect_passed(no_out.judge());
}

TEST(CausalConv1dCheck, NamesWhatDoesNotFit) {
  const auto message = [](auto&& spoil) {
    Sample sample(Case{.initial = true});
    spoil(sample.problem);
    return testing::refusal_of([&] { check(sample.problem); });
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_EQ(message([](auto& p) {
              p.x.shape = {2, 9};
            }),
            "causal_conv1d: x has shape [2, 9], expected [batch, length, channels]");
  EXPECT_EQ(message([](auto& p) { p.weight.shape[1] = 5; }),
            "causal_conv1d: weight has shape [8, 5], expected [8, width] with width 2 to 4");
  EXPECT_EQ(message([](auto& p) { p.weight.dtype = DType::kBFloat16; }),
            "causal_conv1d: weight is bfloat16, expected float32 (float32, or float64 for float64 "
            "data)");
  EXPECT_EQ(message([](auto& p) { p.bias.shape = {7}; }),
            "causal_conv1d: bias has shape [7], expected [8] = [channels]");
  EXPECT_EQ(message([](auto& p) { p.initial_state.shape[2] = 4; }),
            "causal_conv1d: initial_state has shape [2, 8, 4], expected [2, 8, 3] = [sequences, "
            "channels, width - 1]");
  EXPECT_EQ(message([](auto& p) { p.initial_state.dtype = DType::kFloat16; }),
            "causal_conv1d: initial_state is float16, expected float32 (the type of x)");
  const int64_t offsets[] = {0, 9};
  EXPECT_EQ(message([&](auto& p) {
              p.offsets = offsets;
              p.sequences = 1;
            }),
            "causal_conv1d: x has batch 2, expected 1 with packed sequences");
  Sample wide(Case{.dtype = DType::kFloat64});
  EXPECT_THROW(check_gpu(wide.problem), Unsupported);
}

TEST(CausalConv1dPlanner, PlanIsAValueThatDoesNotDependOnThreadsButForMemory) {
  const CausalConv1dSize size{.batch = 8, .length = 512, .channels = 384, .width = 4};
  const CausalConv1dPlan one = plan(size, Pass::kBackward, 1), two = plan(size, Pass::kBackward, 2);
  EXPECT_EQ(one, plan(size, Pass::kBackward, 1));
  EXPECT_EQ(one.tasks, two.tasks);
  EXPECT_EQ(one.parts, two.parts);
  EXPECT_LT(one.workspace_bytes, two.workspace_bytes);
  EXPECT_NE(to_string(one).find("time tile       32"), std::string::npos);
}

}  // namespace
}  // namespace linescan::testing
