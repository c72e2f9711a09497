// selective_scan on the CPU against the double reference: every option, type, layout and
// instruction set, sizes that straddle vectors, blocks and tiles.

#include <gtest/gtest.h>

#include <thread>

#include "linescan/base/error.h"
#include "linescan/device/simd_target.h"
#include "linescan/ops/selective_scan/sample.h"
#include "tests/support/judging.h"
#include "tests/support/messages.h"

namespace linescan::testing {
namespace {

using Case = SelectiveScanCase;
using Problem = SelectiveScanSample;

class SelectiveScan : public ::testing::TestWithParam<Case> {};

TEST_P(SelectiveScan, AgreesWithReferenceOnEveryInstructionSet) {
  const std::string best = simd_target();
  for (const std::string& target : simd_targets()) {
    SCOPED_TRACE(target);
    force_simd_target(target);
    Problem p(GetParam());
    p.run();
    expect_passed(p.judge());
  }
  force_simd_target(best);
}

// Vector widths are 1, 8 and 16, blocks 64 channels, tiles 32 steps and more.
INSTANTIATE_TEST_SUITE_P(
    Sizes, SelectiveScan,
    ::testing::Values(Case{}, Case{.batch = 1, .channels = 1, .length = 1},
                      Case{.channels = 15, .length = 31}, Case{.channels = 16, .length = 32},
                      Case{.channels = 17, .length = 33}, Case{.channels = 63, .length = 49},
                      Case{.channels = 64, .length = 64}, Case{.channels = 65, .length = 65},
                      Case{.channels = 130, .groups = 2, .length = 40, .states = 3},
                      Case{.channels = 12, .groups = 4, .length = 196, .states = 16},
                      Case{.batch = 1, .channels = 4, .length = 784, .states = 5},
                      Case{.batch = 1, .channels = 3, .length = 3136},
                      Case{.batch = 1, .channels = 2, .length = 9, .states = 300},
                      Case{.batch = 1, .channels = 2, .length = 5, .states = 1024},
                      Case{.batch = 70, .channels = 3, .length = 4},
                      Case{.batch = 3, .channels = 700, .length = 3, .states = 2}));

INSTANTIATE_TEST_SUITE_P(Options, SelectiveScan,
                         ::testing::Values(Case{.softplus = false}, Case{.bias = false},
                                           Case{.gate = true}, Case{.skip = false},
                                           Case{.length = 40, .initial = true},
                                           Case{.length = 40, .states = 3, .constant_B = true},
                                           Case{.length = 40, .states = 3, .constant_C = true},
                                           Case{.channels = 20,
                                                .length = 70,
                                                .states = 2,
                                                .softplus = false,
                                                .bias = false,
                                                .gate = true,
                                                .skip = false,
                                                .initial = true,
                                                .constant_B = true,
                                                .constant_C = true},
                                           Case{.channels = 70,
                                                .groups = 2,
                                                .length = 70,
                                                .states = 2,
                                                .gate = true,
                                                .initial = true}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndLayouts, SelectiveScan,
    ::testing::Values(
        Case{.channels = 37, .length = 41, .states = 2, .layout = Layout::kChannelsLast},
        Case{.channels = 37, .length = 41, .states = 2, .layout = Layout::kGaps},
        Case{.channels = 37,
             .length = 41,
             .states = 2,
             .layout = Layout::kLengthLast,
             .misalign = 1},
        Case{.channels = 37, .length = 41, .layout = Layout::kChannelsLast, .misalign = 3},
        Case{.channels = 37, .length = 41, .states = 2, .dtype = DType::kBFloat16, .gate = true},
        Case{.channels = 37,
             .length = 41,
             .states = 2,
             .dtype = DType::kBFloat16,
             .layout = Layout::kChannelsLast,
             .out_dtype = DType::kBFloat16},
        Case{.channels = 37,
             .length = 41,
             .states = 2,
             .dtype = DType::kFloat16,
             .layout = Layout::kChannelsLast,
             .initial = true,
             .out_dtype = DType::kFloat16},
        Case{.channels = 37,
             .length = 41,
             .states = 2,
             .dtype = DType::kFloat16,
             .out_dtype = DType::kFloat16,
             .misalign = 1},
        Case{.channels = 37,
             .length = 41,
             .states = 2,
             .dtype = DType::kFloat64,
             .gate = true,
             .initial = true,
             .out_dtype = DType::kFloat64},
        Case{.channels = 37,
             .length = 41,
             .dtype = DType::kFloat64,
             .layout = Layout::kChannelsLast,
             .out_dtype = DType::kFloat64}));

TEST(SelectiveScanOperator, EmptySizesGiveEmptyResultsAndPassStatesThrough) {
  Problem no_batch(Case{.batch = 0, .initial = true});
  no_batch.run();
  EXPECT_EQ(read_element(no_batch.gA.view(), 5, 0), 0);
  EXPECT_EQ(read_element(no_batch.gD.view(), 5), 0);
  Problem no_length(Case{.length = 0, .states = 2, .initial = true});
  no_length.run();
  EXPECT_LE(
      judge(no_length.last.view(), reference_forward(no_length.problem).last_state, 0).worst_ratio,
      1);
  for_each_index(no_length.last.view().shape, [&](int64_t i, int64_t j, int64_t k, int64_t) {
    EXPECT_EQ(read_element(no_length.last.view(), i, j, k),
              read_element(no_length.initial.view(), i, j, k));
    EXPECT_EQ(read_element(no_length.ginitial.view(), i, j, k),
              read_element(no_length.glast.view(), i, j, k));
  });
  EXPECT_EQ(read_element(no_length.gA.view(), 0, 0), 0);
}

TEST(SelectiveScanOperator, ResultsDoNotDependOnThreads) {
  const Case c{.batch = 5, .channels = 150, .groups = 2, .length = 77, .states = 3, .gate = true};
  Problem one(c), many(c);
  one.run();
  many.run(
      [](int64_t count, const ParallelBody& body) {
        std::vector<std::jthread> threads;
        for (int64_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i, i + 1); });
      },
      7);
  EXPECT_EQ(one.out.bytes(), many.out.bytes());
  EXPECT_EQ(one.gu.bytes(), many.gu.bytes());
  EXPECT_EQ(one.gA.bytes(), many.gA.bytes());
  EXPECT_EQ(one.gB.bytes(), many.gB.bytes());
  EXPECT_EQ(one.gbias.bytes(), many.gbias.bytes());
}

TEST(SelectiveScanOperator, NotFiniteInputStaysInItsChannel) {
  const Case c{.batch = 2, .channels = 20, .length = 40, .states = 2};
  Problem clean(c), dirty(c);
  dirty.u.set(0, 3, 5, 0, NAN);
  dirty.delta.set(1, 7, 6, 0, INFINITY);
  clean.run();
  dirty.run();
  for_each_index(clean.out.view().shape, [&](int64_t b, int64_t channel, int64_t t, int64_t) {
    const double got = read_element(dirty.out.view(), b, channel, t);
    const bool poisoned = b == 0 && channel == 3 && t >= 5, other = b == 1 && channel == 7;
    if (poisoned) {
      EXPECT_TRUE(std::isnan(got)) << t;
    } else if (!other) {
      EXPECT_EQ(got, read_element(clean.out.view(), b, channel, t));
    }
  });
}

TEST(SelectiveScanOperator, PiecesChainToTheWhole) {
  Problem whole(Case{.channels = 9, .length = 50, .states = 4, .initial = true});
  whole.run();
  Problem pieces(Case{.channels = 9, .length = 50, .states = 4, .initial = true});
  SampleTensor state = pieces.initial;
  const auto cut = [](TensorView view, int dim, int64_t begin, int64_t length) {
    view.data = static_cast<char*>(view.data) + begin * view.strides[dim] * size_of(view.dtype);
    view.shape[dim] = length;
    return view;
  };
  for (const auto& [begin, length] : {std::pair<int64_t, int64_t>{0, 1}, {1, 32}, {33, 17}}) {
    SelectiveScanProblem piece = pieces.problem;
    for (TensorView* view : {&piece.u, &piece.delta, &piece.out})
      *view = cut(*view, 2, begin, length);
    for (TensorView* view : {&piece.B, &piece.C}) *view = cut(*view, 3, begin, length);
    piece.initial_state = piece.last_state = state.view();  // in place
    const auto plan = linescan::plan(size_of(piece), Pass::kForward, 1);
    Workspace workspace(plan.workspace_bytes);
    forward(piece, plan, workspace.data(), serial_for);
  }
  EXPECT_EQ(pieces.out.bytes(), whole.out.bytes());
}

TEST(SelectiveScanCheck, NamesWhatDoesNotFit) {
  const auto message = [](auto&& spoil) {
    Problem p(Case{.channels = 6, .groups = 2, .length = 7, .states = 3, .initial = true});
    spoil(p.problem);
    return testing::refusal_of([&] { check(p.problem); });
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_EQ(
      message([](auto& p) { p.delta.shape[2] = 8; }),
      "selective_scan: delta has shape [2, 6, 8], expected [2, 6, 7] = [batch, channels, length]");
  EXPECT_EQ(message([](auto& p) { p.B.shape[2] = 4; }),
            "selective_scan: B has shape [2, 2, 4, 7], expected [2, 2, 3, 7] = [batch, groups, "
            "states, length]");
  EXPECT_EQ(message([](auto& p) { p.B.shape[1] = p.C.shape[1] = 4; }),
            "selective_scan: B has 4 groups, which do not divide 6 channels");
  EXPECT_EQ(message([](auto& p) { p.C.shape[1] = 1; }),
            "selective_scan: C has 1 groups, expected 2 as B");
  EXPECT_EQ(message([](auto& p) {
              p.A.shape = {5, 3};
            }),
            "selective_scan: A has shape [5, 3], expected [6, states] with states >= 1");
  EXPECT_EQ(message([](auto& p) {
              p.z = p.u;
              p.z.dtype = DType::kBFloat16;
            }),
            "selective_scan: z is bfloat16, expected float32 (the type of u)");
  EXPECT_EQ(
      message([](auto& p) { p.A.dtype = DType::kFloat16; }),
      "selective_scan: A is float16, expected float32 (float32, or float64 for float64 data)");
  EXPECT_EQ(message([](auto& p) { p.D.shape = {7}; }),
            "selective_scan: D has shape [7], expected [6] = [channels]");
  EXPECT_EQ(message([](auto& p) {
              p.initial_state.shape = {2, 6, 2};
            }),
            "selective_scan: initial_state has shape [2, 6, 2], expected [2, 6, 3] = [batch, "
            "channels, states]");
}

TEST(SelectiveScanPlanner, PlanIsAValueThatDoesNotDependOnThreadsButForMemory) {
  const SelectiveScanSize size{.batch = 8, .channels = 384, .length = 3136, .states = 16};
  const SelectiveScanPlan one = plan(size, Pass::kBackward, 1),
                          two = plan(size, Pass::kBackward, 2);
  EXPECT_EQ(one, plan(size, Pass::kBackward, 1));
  EXPECT_EQ(one.tasks, two.tasks);
  EXPECT_EQ(one.partitions, two.partitions);
  EXPECT_LT(one.workspace_bytes, two.workspace_bytes);
  EXPECT_NE(to_string(one).find("channel block   64"), std::string::npos);
}

}  // namespace
}  // namespace linescan::testing
