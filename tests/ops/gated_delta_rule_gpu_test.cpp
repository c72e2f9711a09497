// gated_delta_rule's kernels against the double reference: on a GPU, or on the CPU through the emulator.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "linescan/base/error.h"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"
#include "linescan/ops/gated_delta_rule/sample.h"
#include "tests/support/gpu_sample.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = GatedDeltaRuleCase;
using Mode = GatedDeltaRuleMode;

// Eight-byte numbers on the GPU.
const int64_t* take_numbers(GpuTensors& gpu, SampleTensor& memory,
                            const std::vector<int64_t>& numbers) {
  memory = SampleTensor({static_cast<int64_t>(numbers.size())}, DType::kFloat64);
  std::memcpy(memory.view().data, numbers.data(), numbers.size() * sizeof(int64_t));
  return gpu.take(memory).as<int64_t>();
}

struct Twist {
  int64_t largest_grid = kLargestGrid;
  bool upstream = true;            // whether there is a gradient of o
  GatedDeltaRulePiece piece = {};  // of a backward pass, with states that the forward pass keeps
};

// check, plan, forward and backward in a workspace full of NaN, or another filling; results come back to
// the sample. The kernels planned for one GPU run on every later one.
void run(GatedDeltaRuleSample& s, int filling = 0xFF, const Gpu& planned_for = test_gpu(),
         const Twist& twist = {}) {
  GpuTensors gpu;
  const bool heads_first =
      s.problem.q.shape != s.q.view().shape || s.problem.q.strides != s.q.view().strides;
  const auto take = [&](SampleTensor& tensor) {
    TensorView view = gpu.take(tensor);
    if (heads_first && view) {
      std::swap(view.shape[1], view.shape[2]);
      std::swap(view.strides[1], view.strides[2]);
    }
    return view;
  };
  GatedDeltaRuleProblem problem = s.problem;
  problem.q = take(s.q);
  problem.k = take(s.k);
  problem.v = take(s.v);
  problem.g = take(s.g);
  problem.beta = take(s.beta);
  problem.initial_state = gpu.take(s.initial);
  problem.inputs.A_log = gpu.take(s.A_log);
  problem.inputs.dt_bias = gpu.take(s.dt_bias);
  problem.o = take(s.o);
  problem.final_state = gpu.take(s.final_state);
  SampleTensor bounds;
  if (problem.packed) problem.bounds = take_numbers(gpu, bounds, s.bounds);
  const GatedDeltaRuleGradients gradients = {.o = twist.upstream ? take(s.go) : TensorView{},
                                             .final_state = gpu.take(s.gfinal),
                                             .q = take(s.gq),
                                             .k = take(s.gk),
                                             .v = take(s.gv),
                                             .g = take(s.gg),
                                             .beta = take(s.gbeta),
                                             .initial_state = gpu.take(s.ginitial),
                                             .A_log = gpu.take(s.gA_log),
                                             .dt_bias = gpu.take(s.gdt_bias)};
  check(problem);
  check_gpu(problem);
  SampleTensor states;
  GatedDeltaRulePiece piece = gpu_piece(size_of(problem), problem.packed);
  if (twist.piece.batch > 0) {
    piece = twist.piece;
    states = SampleTensor({gpu_kept_states(size_of(problem), piece)}, DType::kFloat32);
    problem.states = gpu.take(states);
  }
  const GatedDeltaRuleSize size = size_of(problem);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    auto how = plan(size, problem.packed, pass, planned_for, piece);
    for (DeltaLaunch* launch : {&how.records, &how.scan, &how.reverse_scan, &how.gradients})
      launch->grid = std::min(launch->grid, twist.largest_grid);
    GpuWorkspace workspace(how.workspace_bytes, filling);
    if (pass == Pass::kForward)
      forward(problem, how, workspace.data(), {});
    else
      backward(problem, gradients, how, workspace.data(), {});
    if (pass == Pass::kBackward) gpu.bring_back();
  }
}

void expect_same_bits(const GatedDeltaRuleSample& one, const GatedDeltaRuleSample& two) {
  for (const auto& [a, b] : {std::pair{&one.o, &two.o},
                             {&one.final_state, &two.final_state},
                             {&one.gq, &two.gq},
                             {&one.gk, &two.gk},
                             {&one.gv, &two.gv},
                             {&one.gg, &two.gg},
                             {&one.gbeta, &two.gbeta},
                             {&one.gA_log, &two.gA_log},
                             {&one.gdt_bias, &two.gdt_bias},
                             {&one.ginitial, &two.ginitial}})
    EXPECT_EQ(a->bytes(), b->bytes());
}

class GatedDeltaRuleGpu : public ::testing::TestWithParam<Case> {
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  }
};

TEST_P(GatedDeltaRuleGpu, AgreesWithReference) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  for (const int filling : {0xFF, 1}) {
    GatedDeltaRuleSample sample(c);
    run(sample, filling);
    expect_passed(sample.judge(gated_delta_rule_gpu_bound(c.dtype)));
  }
}

// What is done by warp groups where there are such, by the kernels that do without.
class GatedDeltaRuleAmpereGpu : public GatedDeltaRuleGpu {};

TEST_P(GatedDeltaRuleAmpereGpu, AgreesWithReference) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  GatedDeltaRuleSample sample(c);
  const GatedDeltaRuleSize size = size_of(sample.problem);
  const Gpu& ampere = find_gpu("a100");
  const auto by_groups = [&](const Gpu& gpu) {
    const GatedDeltaRuleGpuPlan how = plan(size, sample.problem.packed, Pass::kBackward, gpu);
    return how.warp_groups || how.key_pair;
  };
  EXPECT_TRUE(by_groups(find_gpu("h100")));
  EXPECT_FALSE(by_groups(ampere));
  run(sample, 0xFF, ampere);
  expect_passed(sample.judge(gated_delta_rule_gpu_bound(c.dtype)));
}

// Many sequences with small heads, or so few multiprocessors that any number is many.
class GatedDeltaRuleSequencesGpu : public GatedDeltaRuleGpu {
 protected:
  static Gpu small_gpu() {
    Gpu gpu = test_gpu();
    gpu.multiprocessors = 1;
    return gpu;
  }
};

TEST_P(GatedDeltaRuleSequencesGpu, AgreeWithReference) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  for (const int filling : {0xFF, 1})
    for (const int64_t grid : {kLargestGrid, int64_t{1}}) {
      GatedDeltaRuleSample sample(c);
      const GatedDeltaRuleSize size = size_of(sample.problem);
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        EXPECT_EQ(plan(size, sample.problem.packed, pass, small_gpu()).whole_sequences,
                  pass == Pass::kForward || c.heads == c.value_heads);
      run(sample, filling, small_gpu(), {.largest_grid = grid});
      expect_passed(sample.judge(gated_delta_rule_gpu_bound(c.dtype)));
    }
}

TEST_P(GatedDeltaRuleSequencesGpu, DoWithoutAGradientOfTheOutputs) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  GatedDeltaRuleSample sample(c);
  std::memset(sample.go.memory().data(), 0, sample.go.memory().size());
  run(sample, 0xFF, small_gpu(), {.upstream = false});
  expect_passed(sample.judge(gated_delta_rule_gpu_bound(c.dtype)));
}

TEST_P(GatedDeltaRuleSequencesGpu, RepeatBitByBit) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  GatedDeltaRuleSample one(c), two(c);
  run(one, 0xFF, small_gpu());
  run(two, 1, small_gpu(), {.largest_grid = 1});
  expect_same_bits(one, two);
}

TEST_P(GatedDeltaRuleGpu, RecurrenceAgreesWithReference) {
  Case c = GetParam();
  c.mode = Mode::kRecurrent;
  GatedDeltaRuleSample sample(c);
  run(sample);
  auto verdicts = sample.judge();  // in float32 whatever the type
  verdicts.resize(2);              // o and final_state
  expect_passed(verdicts);
}

TEST_P(GatedDeltaRuleGpu, RepeatsBitByBit) {
  GatedDeltaRuleSample one(GetParam()), two(GetParam());
  run(one);
  run(two);
  expect_same_bits(one, two);
}

constexpr DType kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;

INSTANTIATE_TEST_SUITE_P(
    Sizes, GatedDeltaRuleGpu,
    ::testing::Values(
        Case{}, Case{.dtype = kBf16},
        Case{.batch = 1, .length = 1, .heads = 1, .value_heads = 1, .K = 1, .V = 1},
        Case{.length = 31, .K = 16, .V = 17}, Case{.length = 33, .K = 33, .V = 16},
        Case{.batch = 1,
             .length = 130,
             .heads = 1,
             .value_heads = 1,
             .K = 32,
             .V = 32,
             .dtype = kBf16},
        Case{.batch = 1,
             .length = 65,
             .heads = 1,
             .value_heads = 2,
             .K = 64,
             .V = 48,
             .dtype = kBf16},
        Case{.batch = 1,
             .length = 70,
             .heads = 1,
             .value_heads = 1,
             .K = 128,
             .V = 40,
             .dtype = kBf16},
        Case{.batch = 1,
             .length = 40,
             .heads = 1,
             .value_heads = 1,
             .K = 256,
             .V = 24,
             .dtype = kBf16},
        Case{.batch = 1,
             .length = 20,
             .heads = 1,
             .value_heads = 1,
             .K = 512,
             .V = 8,
             .dtype = kBf16},
        Case{.batch = 1, .length = 40, .heads = 1, .value_heads = 1, .K = 128, .V = 20},
        Case{.batch = 1, .length = 20, .heads = 1, .value_heads = 1, .K = 256, .V = 9},
        Case{.batch = 1, .length = 20, .heads = 1, .value_heads = 1, .K = 300, .V = 9},
        Case{.batch = 1, .length = 9, .heads = 1, .value_heads = 2, .K = 6, .V = 200},
        Case{.length = 40, .heads = 2, .value_heads = 6, .K = 5, .V = 6}));

INSTANTIATE_TEST_SUITE_P(
    Options, GatedDeltaRuleGpu,
    ::testing::Values(
        Case{.length = 70, .initial = true}, Case{.length = 70, .initial = true, .v_first = true},
        Case{.length = 40, .K = 20, .V = 7, .reverse = true, .initial = true},
        Case{.length = 40, .gate = true}, Case{.length = 40, .gate = true, .gate_bias = true},
        Case{.length = 40, .norm = false, .largest_key = 0.5}, Case{.length = 40, .sigmoid = true},
        Case{.length = 40, .sigmoid = true, .negative = true},
        Case{.length = 80, .dtype = kBf16, .norm = false, .largest_key = 0.5},
        Case{.length = 80,
             .heads = 1,
             .value_heads = 3,
             .K = 24,
             .V = 72,
             .dtype = kBf16,
             .reverse = true,
             .initial = true,
             .v_first = true,
             .gate = true,
             .gate_bias = true,
             .sigmoid = true,
             .negative = true}));

// What the kernels of warp groups are made for (gpu_plan.h): several parts and slices of V, more chunks than stages,
// rows that are not whole packs, every option.
const Case kWarpGroupCases[] = {
    Case{.batch = 1, .length = 70, .heads = 1, .value_heads = 1, .K = 100, .V = 70, .dtype = kBf16},
    Case{.batch = 1,
         .length = 70,
         .heads = 1,
         .value_heads = 2,
         .K = 64,
         .V = 64,
         .dtype = kFp16,
         .initial = true,
         .misalign = 1},
    Case{.batch = 1,
         .length = 200,
         .heads = 1,
         .value_heads = 1,
         .K = 40,
         .V = 33,
         .dtype = kBf16,
         .initial = true},
    Case{.batch = 1,
         .length = 270,
         .heads = 1,
         .value_heads = 1,
         .K = 72,
         .V = 136,
         .dtype = kFp16,
         .initial = true,
         .v_first = true,
         .gate = true},
    Case{.batch = 1,
         .length = 200,
         .heads = 1,
         .value_heads = 1,
         .K = 128,
         .V = 80,
         .dtype = kBf16,
         .reverse = true,
         .initial = true,
         .gate = true,
         .gate_bias = true,
         .sigmoid = true,
         .negative = true},
    Case{.batch = 1,
         .length = 270,
         .heads = 1,
         .value_heads = 2,
         .K = 64,
         .V = 72,
         .dtype = kBf16,
         .bounds = {3, 3, 4, 67, 67, 131, 265},
         .reverse = true,
         .initial = true,
         .gate = true}};
INSTANTIATE_TEST_SUITE_P(WarpGroups, GatedDeltaRuleGpu, ::testing::ValuesIn(kWarpGroupCases));
INSTANTIATE_TEST_SUITE_P(WarpGroups, GatedDeltaRuleAmpereGpu, ::testing::ValuesIn(kWarpGroupCases));

// Scans whose two warp groups share the keys, gradients for half of the keys after the other; an odd number of value
// heads a head, so that the record's rows change places with the halves.
const Case kPairCases[] = {Case{.batch = 1,
                                .length = 200,
                                .heads = 1,
                                .value_heads = 2,
                                .K = 256,
                                .V = 72,
                                .dtype = kBf16,
                                .initial = true},
                           Case{.batch = 1,
                                .length = 70,
                                .heads = 1,
                                .value_heads = 1,
                                .K = 130,
                                .V = 136,
                                .dtype = kFp16,
                                .initial = true,
                                .v_first = true,
                                .gate = true,
                                .misalign = 1},
                           Case{.batch = 1,
                                .length = 270,
                                .heads = 1,
                                .value_heads = 1,
                                .K = 200,
                                .V = 40,
                                .dtype = kBf16,
                                .bounds = {3, 3, 4, 67, 67, 131, 265},
                                .reverse = true,
                                .initial = true,
                                .gate = true},
                           Case{.batch = 2,
                                .length = 130,
                                .heads = 1,
                                .value_heads = 3,
                                .K = 192,
                                .V = 70,
                                .dtype = kBf16,
                                .reverse = true,
                                .initial = true,
                                .gate = true,
                                .gate_bias = true,
                                .sigmoid = true,
                                .negative = true},
                           Case{.batch = 1,
                                .length = 80,
                                .heads = 2,
                                .value_heads = 2,
                                .K = 256,
                                .V = 48,
                                .dtype = kBf16,
                                .norm = false,
                                .float_beta = true,
                                .heads_first = true,
                                .largest_key = 0.1}};
INSTANTIATE_TEST_SUITE_P(Pairs, GatedDeltaRuleGpu, ::testing::ValuesIn(kPairCases));
INSTANTIATE_TEST_SUITE_P(Pairs, GatedDeltaRuleAmpereGpu, ::testing::ValuesIn(kPairCases));

const Case kSequenceCases[] = {
    Case{.batch = 3, .length = 70, .heads = 2, .value_heads = 2, .K = 32, .V = 32, .dtype = kBf16},
    Case{.batch = 5, .length = 1, .heads = 1, .value_heads = 1, .K = 1, .V = 1, .dtype = kBf16},
    Case{.batch = 2,
         .length = 16,
         .heads = 3,
         .value_heads = 3,
         .K = 16,
         .V = 32,
         .dtype = kFp16,
         .initial = true},
    Case{.batch = 2,
         .length = 50,
         .heads = 2,
         .value_heads = 6,
         .K = 24,
         .V = 20,
         .dtype = kBf16,
         .initial = true,
         .gate = true},
    Case{.batch = 4,
         .length = 33,
         .heads = 1,
         .value_heads = 1,
         .K = 17,
         .V = 31,
         .dtype = kFp16,
         .initial = true,
         .v_first = true,
         .gate = true,
         .misalign = 1},
    Case{.batch = 2,
         .length = 80,
         .heads = 2,
         .value_heads = 2,
         .K = 32,
         .V = 24,
         .dtype = kBf16,
         .reverse = true,
         .initial = true,
         .gate = true,
         .gate_bias = true,
         .sigmoid = true,
         .negative = true},
    Case{.batch = 1,
         .length = 150,
         .heads = 2,
         .value_heads = 2,
         .K = 32,
         .V = 32,
         .dtype = kBf16,
         .bounds = {3, 3, 4, 67, 67, 131, 145},
         .reverse = true,
         .initial = true,
         .gate = true},
    Case{.batch = 4,
         .length = 40,
         .heads = 1,
         .value_heads = 1,
         .K = 32,
         .V = 32,
         .dtype = kBf16,
         .norm = false,
         .float_beta = true,
         .heads_first = true,
         .largest_key = 0.5},
    Case{.batch = 4,
         .length = 70,
         .heads = 1,
         .value_heads = 1,
         .K = 32,
         .V = 32,
         .dtype = kBf16,
         .initial = true,
         .largest_decay = 1000},
    Case{.batch = 4,
         .length = 0,
         .heads = 1,
         .value_heads = 1,
         .K = 32,
         .V = 32,
         .dtype = kBf16,
         .initial = true,
         .gate = true}};
INSTANTIATE_TEST_SUITE_P(Sequences, GatedDeltaRuleSequencesGpu,
                         ::testing::ValuesIn(kSequenceCases));

// Sequences of no tokens, of one, of less and more than a chunk; tokens that belong to none.
INSTANTIATE_TEST_SUITE_P(
    Packed, GatedDeltaRuleGpu,
    ::testing::Values(
        Case{.batch = 1, .length = 60, .bounds = {0, 1, 1, 20, 60}, .initial = true},
        Case{.batch = 1, .length = 60, .bounds = {5, 40, 40, 52}, .initial = true},
        Case{.batch = 1,
             .length = 150,
             .dtype = kBf16,
             .bounds = {0, 63, 64, 64, 150},
             .reverse = true,
             .v_first = true,
             .gate = true},
        // Tokens in front of the first sequence, a chunk of them and more; no sequence.
        Case{.batch = 1, .length = 100, .bounds = {40, 60, 90}, .gate = true},
        Case{.batch = 1, .length = 100, .bounds = {70, 100}, .reverse = true},
        Case{.batch = 1, .length = 9, .bounds = {4}},
        Case{.batch = 1, .length = 70, .bounds = {4}, .gate = true},
        Case{.batch = 1,
             .length = 30,
             .heads = 1,
             .value_heads = 2,
             .bounds = {-5, 9, 3, 100, 12}}));

INSTANTIATE_TEST_SUITE_P(
    TypesAndLayouts, GatedDeltaRuleGpu,
    ::testing::Values(
        Case{.length = 37, .K = 20, .V = 18, .heads_first = true},
        Case{.length = 37, .K = 20, .V = 18, .misalign = 1},
        Case{.length = 70, .K = 24, .V = 16, .dtype = kBf16, .initial = true, .heads_first = true},
        Case{.length = 70, .dtype = kBf16, .sigmoid = true, .float_beta = true, .misalign = 1},
        Case{.length = 37,
             .heads = 1,
             .K = 20,
             .V = 18,
             .dtype = kFp16,
             .gate = true,
             .sigmoid = true,
             .misalign = 3},
        Case{.length = 70, .K = 32, .V = 16, .dtype = kFp16, .initial = true}));

// States that are forgotten within a step, keys that more than reverse what the state has of them.
INSTANTIATE_TEST_SUITE_P(
    HardNumbers, GatedDeltaRuleGpu,
    ::testing::Values(Case{.length = 70, .initial = true, .largest_decay = 1000},
                      Case{.length = 70, .norm = false, .largest_decay = 60, .largest_key = 3},
                      Case{.length = 70, .initial = true, .largest_decay = 0},
                      Case{.length = 0, .initial = true, .gate = true},
                      Case{.batch = 0, .initial = true, .gate = true}));

TEST(GatedDeltaRuleGpuOperator, UnnormalisedKeysWithStrongGatesStayFinite) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  for (const DType type : {DType::kFloat32, kBf16}) {
    GatedDeltaRuleSample s({.batch = 1,
                            .length = 256,
                            .K = 16,
                            .V = 16,
                            .dtype = type,
                            .mode = Mode::kChunk,
                            .initial = true,
                            .norm = false,
                            .largest_decay = 200,
                            .largest_key = 30});
    run(s);
    for (const TensorView* view : {&s.problem.o, &s.problem.final_state, &s.gradients.q,
                                   &s.gradients.k, &s.gradients.g, &s.gradients.initial_state})
      for_each_index(view->shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        ASSERT_TRUE(std::isfinite(read_element(*view, i, j, k, l)));
      });
  }
}

TEST(GatedDeltaRuleGpuOperator, GateOfMinusInfinityForgets) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  const Case small{.batch = 1, .length = 40, .heads = 1, .value_heads = 1, .mode = Mode::kChunk};
  Case recurrent = small, half = small;
  recurrent.mode = Mode::kRecurrent;
  half.dtype = kBf16;
  half.batch = 4;  // whole sequences
  Gpu one_multiprocessor = test_gpu();
  one_multiprocessor.multiprocessors = 1;
  for (const Case& c : {small, recurrent, half}) {
    GatedDeltaRuleSample infinite(c), strong(c);
    infinite.g.set(0, 21, 0, 0, -std::numeric_limits<double>::infinity());
    strong.g.set(0, 21, 0, 0, -1e4);
    run(infinite, 0xFF, one_multiprocessor);
    run(strong, 0xFF, one_multiprocessor);
    for (const auto& [a, b] : {std::pair{&infinite.o, &strong.o},
                               {&infinite.final_state, &strong.final_state},
                               {&infinite.gk, &strong.gk},
                               {&infinite.gg, &strong.gg}})
      EXPECT_EQ(a->bytes(), b->bytes());
  }
}

// Tokens of a step are sequences of one token; the third one's slot is not in the pool.
TEST(GatedDeltaRuleGpuOperator, StepsAdvanceTheirSlots) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  for (const Case& c :
       {Case{.batch = 5, .length = 1, .value_heads = 4, .K = 40, .V = 50, .initial = true},
        Case{.batch = 5,
        .length = 1,
        .K = 300,
        .V = 9,
        .dtype = kBf16,
        .initial = true,
        .v_first = true,
        .gate = true,
        .gate_bias = true,
        .sigmoid = true,
        .negative = true}}) {
    GatedDeltaRuleSample s(c), before(c);
    const GatedDeltaRuleJudge expected = reference_forward(s.problem);
    GpuTensors gpu;
    const auto token = [&](SampleTensor& tensor) {
      TensorView view = gpu.take(tensor);
      Shape shape, strides;
      for (int dim = 0; dim < view.shape.rank(); ++dim)
        if (dim != 1) {
          shape.push_back(view.shape[dim]);
          strides.push_back(view.strides[dim]);
        }
      view.shape = shape;
      view.strides = strides;
      return view;
    };
    SampleTensor slots;
    GatedDeltaRuleStepProblem problem = {.q = token(s.q),
                                         .k = token(s.k),
                                         .v = token(s.v),
                                         .g = token(s.g),
                                         .beta = token(s.beta),
                                         .pool = gpu.take(s.initial),
                                         .slots = take_numbers(gpu, slots, {0, 1, 99, 3, 4}),
                                         .inputs = s.problem.inputs,
                                         .o = token(s.o)};
    problem.inputs.A_log = gpu.take(s.A_log);
    problem.inputs.dt_bias = gpu.take(s.dt_bias);
    check(problem);
    check_gpu(problem);
    step(problem, GpuStream{});
    gpu.bring_back();
    const auto check_item = [&](const SampleTensor& got, const Judged& judged, int64_t i) {
      TensorView view = got.view();
      Judged item(view.shape);
      const int64_t count = view.shape.elements() / view.shape[0];
      view.data = view.as<char>() + i * view.strides[0] * size_of(view.dtype);
      view.shape[0] = 1;
      item.shape = view.shape;
      item.value.assign(judged.value.begin() + i * count, judged.value.begin() + (i + 1) * count);
      item.size.assign(judged.size.begin() + i * count, judged.size.begin() + (i + 1) * count);
      EXPECT_LE(judge(view, item, kGatedDeltaRuleBound).worst_ratio, 1) << c << ", token " << i;
    };
    for (const int64_t i : {0, 1, 3, 4}) {
      check_item(s.o, expected.o, i);
      check_item(s.initial, expected.final_state, i);
    }
    for (int64_t j = 0; j < c.V; ++j) EXPECT_EQ(read_element(s.o.view(), 2, 0, 1, j), 0);
    EXPECT_EQ(read_element(s.initial.view(), 2, 1, 3, 3),
              read_element(before.initial.view(), 2, 1, 3, 3));
  }
}

// Blocks that go round, as beyond the largest grid; no gradient of o.
TEST(GatedDeltaRuleGpuOperator, BlocksTakeSeveralItems) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  for (const Case& c : {Case{.length = 40, .mode = Mode::kChunk, .initial = true},
                        Case{.length = 70,
                        .heads = 1,
                        .value_heads = 2,
                        .K = 160,
                        .V = 72,
                        .dtype = kBf16,
                        .mode = Mode::kChunk,
                        .initial = true},
                        Case{.length = 70,
                        .heads = 1,
                        .value_heads = 2,
                        .K = 64,
                        .V = 72,
                        .dtype = kBf16,
                        .mode = Mode::kChunk,
                        .initial = true}})
    for (const bool upstream : {true, false}) {
      GatedDeltaRuleSample sample(c);
      if (!upstream) std::memset(sample.go.memory().data(), 0, sample.go.memory().size());
      run(sample, 0xFF, test_gpu(), {.largest_grid = 2, .upstream = upstream});
      expect_passed(sample.judge(gated_delta_rule_gpu_bound(c.dtype)));
    }
}

// A backward pass that takes parts of the batch, and of sequences, one after the other, and finds the states of their
// segments side by side.
TEST(GatedDeltaRuleGpuPieces, AgreeWithReference) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  struct Cut {
    Case c;
    GatedDeltaRulePiece piece;
    int64_t pieces;
  };
  const Case groups = {.batch = 3,
                       .length = 300,
                       .heads = 1,
                       .value_heads = 2,
                       .K = 40,
                       .V = 33,
                       .dtype = kBf16,
                       .initial = true,
                       .gate = true,
                       .gate_bias = true};
  const Case pair = {.batch = 1,
                     .length = 200,
                     .heads = 1,
                     .value_heads = 1,
                     .K = 130,
                     .V = 40,
                     .dtype = kFp16,
                     .reverse = true,
                     .v_first = true};
  const Case single = {.batch = 2,
                       .length = 200,
                       .heads = 1,
                       .value_heads = 1,
                       .K = 20,
                       .V = 40,
                       .reverse = true,
                       .initial = true,
                       .v_first = true};
  for (const Cut& cut :
       {Cut{groups, {2, 128, 64}, 6}, Cut{groups, {3, 300, 128}, 1}, Cut{groups, {1, 300, 300}, 3},
        Cut{pair, {1, 64, 64}, 4}, Cut{pair, {1, 192, 64}, 2}, Cut{single, {2, 128, 64}, 2}}) {
    SCOPED_TRACE(cut.c);
    SCOPED_TRACE(cut.piece.tokens);
    Case c = cut.c;
    c.mode = Mode::kChunk;
    GatedDeltaRuleSample whole(c), pieces(c);
    GatedDeltaRuleSize size = size_of(whole.problem);
    size.kept_states = true;
    EXPECT_EQ(plan(size, false, Pass::kBackward, test_gpu(), cut.piece).pieces, cut.pieces);
    run(pieces, 0xFF, test_gpu(), {.piece = cut.piece});
    expect_passed(pieces.judge(gated_delta_rule_gpu_bound(c.dtype)));
    run(whole);  // the same numbers but for sums over tokens
    for (const auto& [a, b] : {std::pair{&whole.o, &pieces.o},
                               {&whole.final_state, &pieces.final_state},
                               {&whole.gq, &pieces.gq},
                               {&whole.gk, &pieces.gk},
                               {&whole.gv, &pieces.gv},
                               {&whole.gg, &pieces.gg},
                               {&whole.gbeta, &pieces.gbeta},
                               {&whole.ginitial, &pieces.ginitial}})
      EXPECT_EQ(a->bytes(), b->bytes());
    std::memset(pieces.go.memory().data(), 0, pieces.go.memory().size());
    run(pieces, 0xFF, test_gpu(), {.upstream = false, .piece = cut.piece});
    expect_passed(pieces.judge(gated_delta_rule_gpu_bound(c.dtype)));
  }
}

TEST(GatedDeltaRuleGpuPieces, AreChosenByTheProblemAlone) {
  GatedDeltaRuleSize size{.batch = 8,
                          .sequences = 8,
                          .length = 1024,
                          .heads = 32,
                          .value_heads = 32,
                          .K = 128,
                          .V = 128,
                          .dtype = kBf16};
  const auto kept = [&](bool packed) { return gpu_kept_states(size, gpu_piece(size, packed)); };
  EXPECT_EQ(gpu_piece(size, false), (GatedDeltaRulePiece{2, 1024, 1024}));  // as many waves
  EXPECT_EQ(kept(false), 0);
  const Gpu& gpu = find_gpu("h100");
  size.kept_states = true;
  EXPECT_EQ(plan(size, false, Pass::kForward, gpu).pieces, 1);
  EXPECT_EQ(plan(size, false, Pass::kBackward, gpu).pieces, 4);
  size.batch = size.sequences = 1;
  size.length = 8192;
  EXPECT_EQ(gpu_piece(size, false), (GatedDeltaRulePiece{1, 2048, 1024}));
  EXPECT_EQ(kept(false), 7 * 32 * 128 * 128);
  const auto workspace = [&] { return plan(size, false, Pass::kBackward, gpu).workspace_bytes; };
  const int64_t in_pieces = workspace();
  size.kept_states = false;
  EXPECT_GT(workspace(), 7 * in_pieces / 2);
  EXPECT_EQ(gpu_piece(size, true), (GatedDeltaRulePiece{1, 8192, 8192}));  // packed
  size.mode = Mode::kRecurrent;
  EXPECT_EQ(kept(false), 0);
  size.mode = Mode::kChunk;
  size.value_heads = 0;
  EXPECT_EQ(kept(false), 0);
  EXPECT_FALSE(plan(size, false, Pass::kBackward, gpu).warp_groups);  // gradients of q are zeros
}

// Two and four warps that share the state's columns, several parts of V, more value heads than blocks.
TEST(GatedDeltaRuleGpuOperator, CutsOfTheStateAgree) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  for (const Case& c :
       {Case{.batch = 34, .length = 3, .heads = 2, .value_heads = 4, .V = 64},
        Case{.batch = 17, .length = 3, .heads = 2, .value_heads = 4, .V = 40, .dtype = kBf16}}) {
    Case chunked = c;
    chunked.mode = Mode::kChunk;
    GatedDeltaRuleSample sample(chunked);
    run(sample);
    expect_passed(sample.judge(gated_delta_rule_gpu_bound(c.dtype)));
  }
}

TEST(GatedDeltaRuleGpuPlan, GivesSequencesToWarpsWhereThereAreMany) {
  const Gpu& gpu = find_gpu("a100");
  GatedDeltaRuleSize size{.batch = 2048,
                          .sequences = 2048,
                          .length = 196,
                          .heads = 4,
                          .value_heads = 4,
                          .K = 32,
                          .V = 32,
                          .dtype = kBf16};
  const GatedDeltaRuleGpuPlan backward = plan(size, false, Pass::kBackward, gpu);
  EXPECT_TRUE(plan(size, false, Pass::kForward, gpu).whole_sequences);
  EXPECT_EQ(plan(size, false, Pass::kForward, gpu).workspace_bytes, 0);
  EXPECT_TRUE(backward.whole_sequences);
  EXPECT_EQ(backward.slot_chunks, 13);
  EXPECT_LE(backward.scan.grid, 2 * gpu.multiprocessors);
  size.batch = size.sequences = 16384;  // the same slots, more sums
  EXPECT_LT(plan(size, false, Pass::kBackward, gpu).workspace_bytes, 2 * backward.workspace_bytes);
  GatedDeltaRuleSize grouped = size;
  grouped.value_heads = 8;
  EXPECT_TRUE(plan(grouped, false, Pass::kForward, gpu).whole_sequences);
  EXPECT_FALSE(plan(grouped, false, Pass::kBackward, gpu).whole_sequences);
  for (const auto& change : std::initializer_list<void (*)(GatedDeltaRuleSize&)>{
           [](GatedDeltaRuleSize& s) { s.K = 33; }, [](GatedDeltaRuleSize& s) { s.V = 33; },
           [](GatedDeltaRuleSize& s) { s.dtype = DType::kFloat32; },
           [](GatedDeltaRuleSize& s) { s.batch = s.sequences = 100; }}) {
    GatedDeltaRuleSize other = size;
    change(other);
    EXPECT_FALSE(plan(other, false, Pass::kForward, gpu).whole_sequences);
  }
}

TEST(GatedDeltaRuleGpuPlan, FillsTheDevice) {
  const Gpu& gpu = find_gpu("a100");
  const GatedDeltaRuleSize few{.batch = 1,
                               .sequences = 1,
                               .length = 8192,
                               .heads = 2,
                               .value_heads = 8,
                               .K = 128,
                               .V = 128,
                               .dtype = kBf16};
  EXPECT_EQ(plan(few, false, Pass::kForward, gpu).scan.grid, 64);  // all of V's 16 columns apart
  EXPECT_FALSE(plan(few, false, Pass::kForward, gpu).warp_groups);
  EXPECT_TRUE(plan(few, false, Pass::kForward, find_gpu("h100")).warp_groups);
  GatedDeltaRuleSize many = few;
  many.heads = many.value_heads = 64;
  many.batch = many.sequences = 8;
  EXPECT_EQ(plan(many, false, Pass::kForward, gpu).column_warps, 4);
  many.length = 4;
  EXPECT_EQ(plan(many, false, Pass::kForward, gpu).mode, Mode::kRecurrent);
  EXPECT_EQ(plan(many, false, Pass::kBackward, gpu).mode, Mode::kChunk);
  for (const int64_t K : {1, 33, 65, 129, 300, 512})  // no block is larger than its kernel allows
    for (const int64_t V : {8, 64, 512}) {
      GatedDeltaRuleSize size = many;
      size.length = 100;
      size.K = K;
      size.V = V;
      EXPECT_LE(plan(size, false, Pass::kForward, gpu).scan.block, 256) << K << ' ' << V;
      EXPECT_LE(plan(size, false, Pass::kBackward, gpu).reverse_scan.block, 256) << K << ' ' << V;
    }
  GatedDeltaRuleSize large = few;
  GatedDeltaRuleSize wide = few;
  wide.K = 256;
  wide.V = 512;
  const Gpu& hopper = find_gpu("h100");
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    EXPECT_TRUE(plan(wide, false, pass, hopper).key_pair);
    EXPECT_EQ(plan(wide, false, pass, hopper).chunk, 64);
    EXPECT_FALSE(plan(wide, false, pass, gpu).key_pair);
  }
  // Every block of the gradients' kernel has a slot.
  EXPECT_EQ(plan(wide, false, Pass::kBackward, hopper).gradients.grid, hopper.multiprocessors);
  large.K = 512;
  large.dtype = DType::kFloat32;
  EXPECT_THROW(plan(large, false, Pass::kBackward, find_gpu("rtx4090")), Unsupported);
}

// A kernel that followed them would be caught by the address sanitizer, or on a GPU by memcheck.
TEST(GatedDeltaRuleGpuBounds, ThatLieTouchNothingElse) {
  if (!have_gpu()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  GatedDeltaRuleSample s(Case{.batch = 1,
                              .length = 40,
                              .bounds = {-5, 12, 7, 1000, 3, std::numeric_limits<int64_t>::max()},
                              .mode = Mode::kChunk,
                              .initial = true});
  run(s);
  expect_passed(s.judge(gated_delta_rule_gpu_bound(DType::kFloat32)));
}

}  // namespace
}  // namespace linescan::testing
