// gated_delta_rule on the CPU against the double reference: every option, type, layout, mode and
// instruction set, sizes that straddle vectors, chunks and column blocks.

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "linescan/base/error.h"
#include "linescan/device/simd_target.h"
#include "linescan/ops/gated_delta_rule/sample.h"
#include "tests/support/judging.h"
#include "tests/support/messages.h"

namespace linescan::testing {
namespace {

using Case = GatedDeltaRuleCase;
using Mode = GatedDeltaRuleMode;
using Problem = GatedDeltaRuleSample;

class GatedDeltaRule : public ::testing::TestWithParam<Case> {};

TEST_P(GatedDeltaRule, AgreesWithReferenceOnEveryInstructionSetInBothModes) {
  const std::string best = simd_target();
  for (const std::string& target : simd_targets())
    for (Mode mode : {Mode::kChunk, Mode::kRecurrent}) {
      SCOPED_TRACE(target + " " + std::string(name_of(mode)));
      force_simd_target(target);
      Case c = GetParam();
      c.mode = mode;
      Problem p(c);
      p.run();
      expect_passed(p.judge());
    }
  force_simd_target(best);
}

// Vectors have 1, 8 or 16 numbers, chunks 16 tokens forward and 32 backward, blocks 64 columns.
INSTANTIATE_TEST_SUITE_P(
    Sizes, GatedDeltaRule,
    ::testing::Values(
        Case{}, Case{.batch = 1, .length = 1, .heads = 1, .value_heads = 1, .K = 1, .V = 1},
        Case{.length = 15, .K = 15, .V = 17}, Case{.length = 16, .K = 16, .V = 16},
        Case{.length = 17, .K = 17, .V = 15}, Case{.length = 31, .K = 3, .V = 33},
        Case{.length = 32, .K = 33, .V = 3}, Case{.length = 33, .K = 8, .V = 31},
        Case{.batch = 1, .length = 200, .heads = 1, .value_heads = 1, .K = 5, .V = 5},
        Case{.batch = 1, .length = 20, .heads = 1, .value_heads = 1, .K = 64, .V = 65},
        Case{.batch = 1, .length = 9, .heads = 1, .value_heads = 2, .K = 6, .V = 200},
        Case{.batch = 1, .length = 3, .heads = 1, .value_heads = 1, .K = 512, .V = 7},
        Case{.batch = 1, .length = 3, .heads = 1, .value_heads = 1, .K = 7, .V = 512},
        Case{.length = 40, .heads = 2, .value_heads = 6, .K = 5, .V = 6},
        Case{.batch = 20, .length = 18, .heads = 1, .value_heads = 3, .K = 4, .V = 4}));

INSTANTIATE_TEST_SUITE_P(
    Options, GatedDeltaRule,
    ::testing::Values(
        Case{.length = 40, .initial = true}, Case{.length = 40, .initial = true, .v_first = true},
        Case{.length = 40, .K = 20, .V = 7, .reverse = true, .initial = true},
        Case{.length = 40, .gate = true}, Case{.length = 40, .gate = true, .gate_bias = true},
        Case{.length = 40, .norm = false, .largest_key = 0.5}, Case{.length = 40, .sigmoid = true},
        Case{.length = 40, .sigmoid = true, .negative = true},
        Case{.length = 40,
             .heads = 1,
             .value_heads = 3,
             .K = 9,
             .V = 70,
             .reverse = true,
             .initial = true,
             .v_first = true,
             .gate = true,
             .gate_bias = true,
             .sigmoid = true,
             .negative = true}));

// Sequences of no tokens, of one, of less and more than a chunk; tokens that belong to none.
INSTANTIATE_TEST_SUITE_P(
    Packed, GatedDeltaRule,
    ::testing::Values(Case{.batch = 1, .length = 60, .bounds = {0, 1, 1, 20, 60}, .initial = true},
                      Case{.batch = 1, .length = 60, .bounds = {5, 40, 40, 52}, .initial = true},
                      Case{.batch = 1,
                           .length = 60,
                           .V = 130,
                           .bounds = {0, 33, 60},
                           .reverse = true,
                           .v_first = true,
                           .gate = true},
                      Case{.batch = 1,
                           .length = 30,
                           .heads = 1,
                           .value_heads = 2,
                           .bounds = {-5, 9, 3, 100, 12}}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndLayouts, GatedDeltaRule,
    ::testing::Values(
        Case{.length = 37, .K = 20, .V = 18, .heads_first = true},
        Case{.length = 37, .K = 20, .V = 18, .misalign = 1},
        Case{.length = 37, .heads_first = true, .misalign = 3},
        Case{.length = 37, .K = 20, .V = 18, .dtype = DType::kBFloat16, .initial = true},
        Case{.length = 37,
             .dtype = DType::kBFloat16,
             .sigmoid = true,
             .float_beta = true,
             .heads_first = true},
        Case{.length = 37,
             .heads = 1,
             .K = 20,
             .V = 18,
             .dtype = DType::kFloat16,
             .gate = true,
             .sigmoid = true,
             .misalign = 1},
        Case{.length = 37,
             .heads = 1,
             .K = 20,
             .V = 18,
             .dtype = DType::kFloat64,
             .initial = true,
             .gate = true,
             .gate_bias = true,
             .sigmoid = true}));

// States that are forgotten within a step, keys that more than reverse what the state has of them.
INSTANTIATE_TEST_SUITE_P(
    HardNumbers, GatedDeltaRule,
    ::testing::Values(Case{.length = 70, .initial = true, .largest_decay = 1000},
                      Case{.length = 70, .norm = false, .largest_decay = 60, .largest_key = 3},
                      Case{.length = 40, .K = 16, .norm = false, .largest_key = 1.5},
                      Case{.length = 70, .initial = true, .largest_decay = 0}));

TEST(GatedDeltaRuleOperator, UnnormalisedKeysWithStrongGatesStayFinite) {
  Problem p({.batch = 1,
             .length = 256,
             .K = 16,
             .V = 16,
             .mode = Mode::kChunk,
             .initial = true,
             .norm = false,
             .largest_decay = 200,
             .largest_key = 30});
  p.run();
  for (const TensorView* view : {&p.problem.o, &p.problem.final_state, &p.gradients.q,
                                 &p.gradients.k, &p.gradients.g, &p.gradients.initial_state})
    for_each_index(view->shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
      ASSERT_TRUE(std::isfinite(read_element(*view, i, j, k, l)));
    });
}

// A gate of minus infinity forgets everything before its token, and has no gradient.
TEST(GatedDeltaRuleOperator, GateOfMinusInfinityStartsAnew) {
  for (Mode mode : {Mode::kChunk, Mode::kRecurrent}) {
    Problem p({.batch = 1, .length = 40, .heads = 1, .value_heads = 1, .mode = mode});
    p.g.set(0, 21, 0, 0, -std::numeric_limits<double>::infinity());
    p.run();
    Problem rest({.batch = 1, .length = 40, .heads = 1, .value_heads = 1, .mode = mode});
    rest.problem.packed = true;
    const int64_t bounds[] = {21, 40};
    rest.problem.bounds = bounds;
    rest.problem.packed_sequences = 1;
    rest.run();
    for (int64_t t = 21; t < 40; ++t)
      for (int64_t j = 0; j < 8; ++j)
        EXPECT_NEAR(read_element(p.o.view(), 0, t, 0, j), read_element(rest.o.view(), 0, t, 0, j),
                    1e-6);
    EXPECT_EQ(read_element(p.gg.view(), 0, 21, 0), 0);
    EXPECT_TRUE(std::isfinite(read_element(p.gg.view(), 0, 5, 0)));
  }
}

TEST(GatedDeltaRuleOperator, EmptySizesPassStatesThrough) {
  Problem no_batch({.batch = 0, .initial = true, .gate = true});
  no_batch.run();
  EXPECT_EQ(read_element(no_batch.gA_log.view(), 1), 0);
  Problem no_length({.length = 0, .initial = true, .gate = true});
  no_length.run();
  for_each_index(no_length.final_state.view().shape,
                 [&](int64_t i, int64_t j, int64_t k, int64_t l) {
                   EXPECT_EQ(read_element(no_length.final_state.view(), i, j, k, l),
                             read_element(no_length.initial.view(), i, j, k, l));
                   EXPECT_EQ(read_element(no_length.ginitial.view(), i, j, k, l),
                             read_element(no_length.gfinal.view(), i, j, k, l));
                 });
  EXPECT_EQ(read_element(no_length.gA_log.view(), 0), 0);
  Problem no_values({.heads = 1, .value_heads = 0});
  no_values.run();
  for (const TensorView* view : {&no_values.gradients.q, &no_values.gradients.k})
    for_each_index(view->shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
      EXPECT_EQ(read_element(*view, i, j, k, l), 0);
    });
}

TEST(GatedDeltaRuleOperator, TokensOfNoSequenceGiveZeros) {
  Problem p({.batch = 1, .length = 9, .bounds = {4}});
  p.run();
  for (const TensorView* view : {&p.problem.o, &p.gradients.q, &p.gradients.v, &p.gradients.g})
    for_each_index(view->shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
      EXPECT_EQ(read_element(*view, i, j, k, l), 0);
    });
}

std::vector<std::vector<std::byte>> results_of(Problem& p) {
  return {p.o.bytes(),  p.final_state.bytes(), p.gq.bytes(),       p.gk.bytes(),    p.gv.bytes(),
          p.gg.bytes(), p.gbeta.bytes(),       p.ginitial.bytes(), p.gA_log.bytes()};
}

void run_on_threads(Problem& p) {
  p.run(
      [](int64_t count, const ParallelBody& body) {
        std::vector<std::jthread> threads;
        for (int64_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i, i + 1); });
      },
      5);
}

TEST(GatedDeltaRuleOperator, ResultsDependNeitherOnThreadsNorOnTheRun) {
  const Case c{.batch = 2,
               .length = 45,
               .heads = 1,
               .value_heads = 2,
               .K = 6,
               .V = 140,
               .initial = true,
               .gate = true};
  Problem one(c), again(c), many(c);
  one.run();
  again.run();
  run_on_threads(many);
  EXPECT_EQ(results_of(one), results_of(again));
  EXPECT_EQ(results_of(one), results_of(many));
}

TEST(GatedDeltaRuleOperator, NotFiniteInputStaysInItsHead) {
  const Case c{.batch = 2, .length = 40, .heads = 2, .value_heads = 4};
  Problem clean(c), dirty(c);
  dirty.k.set(0, 5, 1, 2, NAN);
  dirty.g.set(1, 7, 0, 0, NAN);
  clean.run();
  dirty.run();
  for_each_index(clean.o.view().shape, [&](int64_t b, int64_t t, int64_t head, int64_t j) {
    const double got = read_element(dirty.o.view(), b, t, head, j);
    if (b == 0 ? head >= 2 : head == 0) {
      EXPECT_EQ(std::isnan(got), t >= (b == 0 ? 5 : 7)) << t;
    } else {
      EXPECT_EQ(got, read_element(clean.o.view(), b, t, head, j));
    }
  });
}

TensorView cut(TensorView view, int dim, int64_t begin, int64_t count) {
  view.data = static_cast<char*>(view.data) +
              begin * view.strides[dim] * static_cast<int64_t>(size_of(view.dtype));
  view.shape[dim] = count;
  return view;
}

void run_forward(const GatedDeltaRuleProblem& p) {
  check(p);
  const GatedDeltaRulePlan plan = linescan::plan(size_of(p), Pass::kForward, 1);
  Workspace workspace(plan.workspace_bytes);
  forward(p, plan, workspace.data(), serial_for);
}

GatedDeltaRuleProblem piece_of(const GatedDeltaRuleProblem& p, int dim, int64_t begin,
                               int64_t count) {
  GatedDeltaRuleProblem piece = p;
  for (TensorView* view : {&piece.q, &piece.k, &piece.v, &piece.g, &piece.beta, &piece.o})
    *view = cut(*view, dim, begin, count);
  return piece;
}

TEST(GatedDeltaRuleOperator, PackedSequencesEqualSeparateOnes) {
  for (bool reverse : {false, true}) {
    Problem p({.batch = 1,
               .length = 70,
               .bounds = {0, 18, 18, 70},
               .mode = Mode::kChunk,
               .reverse = reverse,
               .initial = true});
    p.run();
    const std::vector<std::byte> packed = p.o.bytes(), states = p.final_state.bytes();
    for (int64_t i = 0; i < 3; ++i) {
      const int64_t begin = p.bounds[i];
      GatedDeltaRuleProblem alone = piece_of(p.problem, 1, begin, p.bounds[i + 1] - begin);
      alone.packed = false;
      alone.initial_state = cut(p.problem.initial_state, 0, i, 1);
      alone.final_state = cut(p.problem.final_state, 0, i, 1);
      run_forward(alone);  // over the packed results
    }
    EXPECT_EQ(p.o.bytes(), packed);
    EXPECT_EQ(p.final_state.bytes(), states);
  }
}

TEST(GatedDeltaRuleOperator, PiecesChainToTheWhole) {
  const Case c{.length = 50, .mode = Mode::kChunk, .initial = true, .gate = true};
  Problem whole(c), pieces(c);
  whole.run();
  // Chunks start where pieces do, so pieces of whole chunks give the same bits.
  const TensorView state = pieces.initial.view();
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 16}, {16, 32}, {48, 2}}) {
    GatedDeltaRuleProblem piece = piece_of(pieces.problem, 1, begin, count);
    piece.initial_state = piece.final_state = state;  // in place
    run_forward(piece);
  }
  EXPECT_EQ(pieces.o.bytes(), whole.o.bytes());
  for_each_index(state.shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
    EXPECT_EQ(read_element(state, i, j, k, l), read_element(whole.final_state.view(), i, j, k, l));
  });
}

TEST(GatedDeltaRuleOperator, ReverseEqualsFlippedInputs) {
  const Case c{.length = 45, .initial = true};
  Problem forwards(c), backwards(c);
  backwards.problem.reverse = true;
  // The same tokens from the last to the first.
  for (TensorView* view : {&backwards.problem.q, &backwards.problem.k, &backwards.problem.v,
                           &backwards.problem.g, &backwards.problem.beta}) {
    view->data = static_cast<char*>(view->data) + (view->shape[1] - 1) * view->strides[1] *
                                                      static_cast<int64_t>(size_of(view->dtype));
    view->strides[1] = -view->strides[1];
  }
  forwards.run();
  run_forward(backwards.problem);
  for_each_index(forwards.o.view().shape, [&](int64_t b, int64_t t, int64_t head, int64_t j) {
    EXPECT_EQ(read_element(backwards.o.view(), b, c.length - 1 - t, head, j),
              read_element(forwards.o.view(), b, t, head, j));
  });
  EXPECT_EQ(forwards.final_state.bytes(), backwards.final_state.bytes());
}

class GatedDeltaRuleStep : public ::testing::TestWithParam<Case> {};

// Steps over a pool of states, judged by the reference of the whole sequence.
TEST_P(GatedDeltaRuleStep, StepsEqualTheWholeOnEveryInstructionSet) {
  const std::string best = simd_target();
  for (const std::string& target : simd_targets()) {
    SCOPED_TRACE(target);
    force_simd_target(target);
    Problem p(GetParam());
    const GatedDeltaRuleJudge expected = reference_forward(p.problem);
    // Token b's state is in the slot that mirrors b.
    std::vector<int64_t> slots;
    for (int64_t b = p.problem.q.shape[0] - 1; b >= 0; --b) slots.push_back(b);
    TensorView mirrored = p.initial.view();
    mirrored.data = static_cast<char*>(mirrored.data) +
                    (mirrored.shape[0] - 1) * mirrored.strides[0] * size_of(mirrored.dtype);
    mirrored.strides[0] = -mirrored.strides[0];
    for (int64_t t = 0; t < p.problem.q.shape[1]; ++t) {
      const auto now = [&](const TensorView& tensor) {
        TensorView view = cut(tensor, 1, t, 1);
        for (int dim = 1; dim + 1 < view.shape.rank(); ++dim) {
          view.shape[dim] = view.shape[dim + 1];
          view.strides[dim] = view.strides[dim + 1];
        }
        Shape shape, strides;
        for (int dim = 0; dim + 1 < view.shape.rank(); ++dim) {
          shape.push_back(view.shape[dim]);
          strides.push_back(view.strides[dim]);
        }
        view.shape = shape;
        view.strides = strides;
        return view;
      };
      const GatedDeltaRuleProblem& whole = p.problem;
      const GatedDeltaRuleStepProblem problem{.q = now(whole.q),
                                              .k = now(whole.k),
                                              .v = now(whole.v),
                                              .g = now(whole.g),
                                              .beta = now(whole.beta),
                                              .pool = mirrored,
                                              .slots = slots.data(),
                                              .inputs = whole.inputs,
                                              .o = now(whole.o)};
      check(problem);
      step(problem, serial_for);
    }
    expect_passed(
        {{"o", judge(p.problem.o, expected.o, kGatedDeltaRuleBound), p.o.margins_intact()},
         {"pool", judge(p.initial.view(), expected.final_state, kGatedDeltaRuleBound),
          p.initial.margins_intact()}});
  }
  force_simd_target(best);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, GatedDeltaRuleStep,
    ::testing::Values(Case{.initial = true}, Case{.initial = true, .v_first = true},
                      Case{.length = 5, .heads = 1, .K = 64, .V = 80, .initial = true},
                      Case{.length = 5, .heads = 1, .K = 33, .V = 47, .initial = true},
                      Case{.length = 5, .K = 33, .V = 47, .initial = true, .v_first = true},
                      Case{.length = 3, .K = 512, .V = 3, .initial = true, .misalign = 1},
                      Case{.length = 9,
                           .heads = 1,
                           .value_heads = 3,
                           .dtype = DType::kBFloat16,
                           .initial = true,
                           .gate = true,
                           .gate_bias = true,
                           .sigmoid = true,
                           .negative = true,
                           .float_beta = true,
                           .heads_first = true},
                      Case{.length = 4,
                           .dtype = DType::kFloat64,
                           .initial = true,
                           .v_first = true,
                           .gate = true}));

TEST(GatedDeltaRuleCheck, NamesWhatDoesNotFit) {
  const auto message = [](auto&& spoil) {
    Problem p({.length = 7,
               .heads = 2,
               .value_heads = 4,
               .K = 8,
               .V = 5,
               .initial = true,
               .gate = true,
               .gate_bias = true,
               .sigmoid = true});
    spoil(p.problem);
    return testing::refusal_of([&] { check(p.problem); });
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_EQ(message([](auto& p) { p.k.shape[3] = 9; }),
            "gated_delta_rule: k has shape [2, 7, 2, 9], expected [2, 7, 2, 8] = [batch, length, "
            "heads, K]");
  EXPECT_EQ(message([](auto& p) { p.v.shape[1] = 6; }),
            "gated_delta_rule: v has shape [2, 6, 4, 5], expected [2, 7, 4, 5] = [batch, length, "
            "value_heads, V]");
  EXPECT_EQ(message([](auto& p) {
              p.q.shape = {2, 7, 8};
            }),
            "gated_delta_rule: q has shape [2, 7, 8], expected [batch, length, heads, K]");
  EXPECT_EQ(message([](auto& p) { p.q.shape[3] = p.k.shape[3] = 513; }),
            "gated_delta_rule: q has K = 513, expected 1 to 512");
  EXPECT_EQ(message([](auto& p) { p.v.shape[3] = 0; }),
            "gated_delta_rule: v has V = 0, expected 1 to 512");
  EXPECT_EQ(message([](auto& p) { p.q.shape[2] = p.k.shape[2] = 3; }),
            "gated_delta_rule: q has 3 heads, which do not divide the 4 heads of v");
  EXPECT_EQ(message([](auto& p) { p.k.dtype = DType::kFloat16; }),
            "gated_delta_rule: k is float16, expected float32 (the type of q)");
  EXPECT_EQ(message([](auto& p) { p.g.dtype = DType::kBFloat16; }),
            "gated_delta_rule: g is bfloat16, expected float32 (float32, or float64 for float64 "
            "data)");
  EXPECT_EQ(message([](auto& p) { p.beta.dtype = DType::kFloat64; }),
            "gated_delta_rule: beta is float64, expected float32 (the type of q) or float32");
  EXPECT_EQ(message([](auto& p) { p.inputs.A_log.shape = {2}; }),
            "gated_delta_rule: A_log has shape [2], expected [4] = [value_heads]");
  EXPECT_EQ(message([](auto& p) { p.inputs.A_log = {}; }),
            "gated_delta_rule: dt_bias is given without A_log, expected both or A_log");
  EXPECT_EQ(message([](auto& p) {
              p.inputs.beta_sigmoid = false;
              p.inputs.allow_neg_eigval = true;
            }),
            "gated_delta_rule: allow_neg_eigval is set without beta_sigmoid, expected both or "
            "neither");
  EXPECT_EQ(message([](auto& p) { p.v.strides[3] = 2; }),
            "gated_delta_rule: v has stride 2 in its last dimension, expected 1");
  EXPECT_EQ(message([](auto& p) { p.inputs.state_v_first = true; }),
            "gated_delta_rule: initial_state has shape [2, 4, 8, 5], expected [2, 4, 5, 8] = "
            "[sequences, value_heads, V, K]");
  EXPECT_EQ(message([](auto& p) { p.packed = true; }),
            "gated_delta_rule: q has batch 2, expected 1 (sequences are packed by cu_seqlens)");
}

TEST(GatedDeltaRulePlanner, ChoosesTheModeByTokensAndStateAndCutsColumnsWhereTasksAreFew) {
  GatedDeltaRuleSize size{
      .batch = 1, .sequences = 1, .length = 2048, .heads = 4, .value_heads = 4, .K = 64, .V = 64};
  EXPECT_EQ(plan(size, Pass::kForward, 2).mode, Mode::kChunk);
  size.length = 7;
  EXPECT_EQ(plan(size, Pass::kForward, 2).mode, Mode::kRecurrent);
  EXPECT_EQ(plan(size, Pass::kBackward, 2).mode, Mode::kChunk);
  size.mode = Mode::kChunk;
  EXPECT_EQ(plan(size, Pass::kForward, 2).mode, Mode::kChunk);
  size.mode = Mode::kAuto;
  size.length = 2048;
  size.K = 16;
  EXPECT_EQ(plan(size, Pass::kForward, 2).mode, Mode::kRecurrent);

  size.V = 512;
  const GatedDeltaRulePlan one = plan(size, Pass::kBackward, 1),
                           two = plan(size, Pass::kBackward, 2);
  EXPECT_EQ(one.column_parts, 4);
  EXPECT_EQ(one.tasks, 16);
  EXPECT_EQ(one.tasks, two.tasks);
  EXPECT_EQ(one.part_columns, two.part_columns);
  EXPECT_LT(one.workspace_bytes, two.workspace_bytes);
  EXPECT_NE(to_string(one).find("mode            chunk"), std::string::npos);
  size.batch = size.sequences = 16;
  EXPECT_EQ(plan(size, Pass::kBackward, 2).column_parts, 1);
}

TEST(GatedDeltaRulePlanner, ParsesModes) {
  for (Mode mode : {Mode::kAuto, Mode::kChunk, Mode::kRecurrent})
    EXPECT_EQ(parse_gated_delta_rule_mode(name_of(mode)), mode);
  EXPECT_THROW(parse_gated_delta_rule_mode("parallel"), InvalidArgument);
}

}  // namespace
}  // namespace linescan::testing
