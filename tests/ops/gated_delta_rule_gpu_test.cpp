// gated_delta_rule's kernels against the double reference: on a GPU, or on the CPU through the emulator.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"
#include "tests/ops/gated_delta_rule_gpu_run.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = GatedDeltaRuleCase;
using Mode = GatedDeltaRuleMode;

constexpr DType kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;

class GatedDeltaRuleGpu : public ::testing::TestWithParam<Case> {
  void SetUp() override {
    if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  }
};

TEST_P(GatedDeltaRuleGpu, AgreesWithReference) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  const GatedDeltaRuleSample::Expected expected = GatedDeltaRuleSample(c).expected();
  for (const int filling : {0xFF, 1}) {
    GatedDeltaRuleSample sample(c);
    run(sample, filling);
    expect_passed(sample.judge(expected, gated_delta_rule_gpu_bound(c.dtype)));
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
    return how.warp_groups || how.deep_groups;
  };
  EXPECT_TRUE(by_groups(find_gpu("h100")));
  EXPECT_FALSE(by_groups(ampere));
  run(sample, 0xFF, ampere);
  expect_passed(sample.judge(gated_delta_rule_gpu_bound(c.dtype)));
}

// Any number of heads is many for it.
Gpu small_gpu() {
  Gpu gpu = test_gpu();
  gpu.multiprocessors = 1;
  return gpu;
}

// Scans of warp groups that make records themselves, with states at boundaries on the way and without, records kept and not.
class GatedDeltaRuleRecordingGpu : public GatedDeltaRuleGpu {};

TEST_P(GatedDeltaRuleRecordingGpu, AgreesWithReference) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  GatedDeltaRuleSample recording(c), other(c);
  GatedDeltaRuleSize size = size_of(recording.problem);
  const bool packed = recording.problem.packed;
  EXPECT_TRUE(plan(size, packed, Pass::kForward, small_gpu()).makes_records);
  EXPECT_FALSE(plan(size, packed, Pass::kForward, test_gpu()).makes_records);
  run(other);
  const GatedDeltaRuleSample::Expected expected = recording.expected();
  const auto expect_right_and_same = [&] {
    expect_passed(recording.judge(expected, gated_delta_rule_gpu_bound(c.dtype)));
    EXPECT_EQ(recording.o.bytes(), other.o.bytes());
    EXPECT_EQ(recording.final_state.bytes(), other.final_state.bytes());
  };
  for (const int filling : {0xFF, 1}) {
    run(recording, filling, small_gpu());
    expect_right_and_same();
  }
  if (packed) {  // one sequence after the other
    run(recording, 0xFF, small_gpu(), {.largest_grid = 1});
    expect_right_and_same();
    return;
  }
  run(recording, 0xFF, small_gpu(),
      {.largest_grid = 1, .piece = {c.batch, std::min<int64_t>(c.length, 128), 64}});
  expect_right_and_same();
  const GatedDeltaRulePiece keeping = {c.batch, c.length, 64, false, true};
  size.kept_states = true;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const GatedDeltaRuleGpuPlan how = plan(size, packed, pass, small_gpu(), keeping);
    EXPECT_TRUE(how.piece.keeps_records);
    EXPECT_EQ(how.records.grid, 0);
  }
  run(recording, 0xFF, small_gpu(), {.largest_grid = 1, .piece = keeping});
  expect_right_and_same();
  // States, too: of all sequences or of some, the last of which may be fewer; what is kept serves two backward passes. And where another
  // kernel, which leaves none, has room for them.
  struct Way {
    int64_t batch, largest_grid;
    Gpu gpu;
  };
  std::vector<Way> ways = {{1, 1, small_gpu()}, {1, 2, test_gpu()}};
  for (int64_t batch = 2; batch <= c.batch; ++batch) ways.push_back({batch, batch, small_gpu()});
  for (const auto& [batch, largest_grid, gpu] : ways) {
    SCOPED_TRACE(batch);
    GatedDeltaRulePiece with_states = keeping;
    with_states.batch = batch;
    with_states.keeps_states = true;
    const GatedDeltaRuleGpuPlan how = plan(size, packed, Pass::kBackward, gpu, with_states);
    EXPECT_EQ(how.piece.keeps_states, gpu.multiprocessors == 1);
    EXPECT_EQ(how.scan.grid == 0, how.piece.keeps_states && batch == c.batch);
    GatedDeltaRuleSample kept(c);
    run(kept, 0xFF, gpu,
        {.largest_grid = largest_grid, .piece = with_states, .backward_passes = 2});
    expect_same_bits(kept, recording);
  }
}

// Many sequences with small heads.
class GatedDeltaRuleSequencesGpu : public GatedDeltaRuleGpu {
 protected:
};

TEST_P(GatedDeltaRuleSequencesGpu, AgreeWithReference) {
  Case c = GetParam();
  c.mode = Mode::kChunk;
  const GatedDeltaRuleSample::Expected expected = GatedDeltaRuleSample(c).expected();
  for (const int filling : {0xFF, 1})
    for (const int64_t grid : {kLargestGrid, int64_t{1}}) {
      GatedDeltaRuleSample sample(c);
      const GatedDeltaRuleSize size = size_of(sample.problem);
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        EXPECT_EQ(plan(size, sample.problem.packed, pass, small_gpu()).whole_sequences,
                  pass == Pass::kForward || c.heads == c.value_heads);
      run(sample, filling, small_gpu(), {.largest_grid = grid});
      expect_passed(sample.judge(expected, gated_delta_rule_gpu_bound(c.dtype)));
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

#ifndef LINESCAN_CUDA_ON_CPU  // where blocks run one after another, the second time as the first
TEST_P(GatedDeltaRuleGpu, RepeatsBitByBit) {
  GatedDeltaRuleSample one(GetParam()), two(GetParam());
  run(one);
  run(two);
  expect_same_bits(one, two);
}
#endif

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
std::vector<Case> recording_cases() {
  std::vector<Case> cases;
  std::ranges::copy_if(kWarpGroupCases, std::back_inserter(cases),
                       [](const Case& c) { return c.V > DeltaLayout::kPanel; });
  Case many = cases.front();  // two parts of V, the second one half empty
  many.value_heads = 2;
  many.length = 200;
  many.K = 128;
  many.V = 192;
  cases.push_back(many);
  // Value heads that share k and q, as they are; a block has all of V, and more chunks than stages.
  Case shared = many;
  shared.length = 330;
  shared.K = 64;
  shared.V = 128;
  shared.norm = false;
  shared.largest_key = 0.1;
  cases.push_back(shared);
  // Several sequences, of which a block walks some after the other.
  Case several = many;
  several.batch = 3;
  several.length = 150;
  several.value_heads = 1;
  several.dtype = kFp16;
  several.reverse = true;
  cases.push_back(several);
  several.K = 64;
  several.V = 128;
  several.dtype = kBf16;
  several.reverse = false;
  several.v_first = several.initial = true;
  cases.push_back(several);
  return cases;
}
INSTANTIATE_TEST_SUITE_P(WarpGroups, GatedDeltaRuleRecordingGpu,
                         ::testing::ValuesIn(recording_cases()));

// Scans of warp groups with many keys, gradients for half of the keys after the other; an odd number of value heads a head, so
// that the record's rows change places with the halves. Blocks whose second group has all of its columns, some, or none.
const Case kDeepCases[] = {Case{.batch = 1,
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
INSTANTIATE_TEST_SUITE_P(ManyKeys, GatedDeltaRuleGpu, ::testing::ValuesIn(kDeepCases));
INSTANTIATE_TEST_SUITE_P(ManyKeys, GatedDeltaRuleAmpereGpu, ::testing::ValuesIn(kDeepCases));

// Blocks share walks: what one hands to the next are the bits that it would have gone on with.
TEST(GatedDeltaRuleSharedWalksGpu, AgreeWithReferenceAndWholeOnes) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const Case three = {.batch = 3,
                      .length = 330,
                      .heads = 1,
                      .value_heads = 1,
                      .K = 130,
                      .V = 40,
                      .dtype = kBf16,
                      .mode = Mode::kChunk,
                      .initial = true,
                      .gate = true};
  Case reverse = three, parts = three, ends = three;
  reverse.reverse = true;
  reverse.dtype = kFp16;
  parts.length = 512;
  parts.K = 136;  // rows of both come in boxes where there are such
  parts.V = 136;
  ends.batch = 5;
  ends.length = 448;
  ends.K = 136;
  struct Way {
    Case c;
    int multiprocessors;
    GatedDeltaRulePiece piece;
    int64_t forward, scan, reverse_scan;  // blocks
  };
  for (
      const Way& way :
      {Way{reverse, 2, {}, 2, 2, 2},
       // Two teams of two, and a multiprocessor too many; walks that stop on the way, one of them where it is cut.
       Way{parts, 5, {3, 512, 128}, 4, 24, 4},
       // Segments of six chunks and of one: a walk may end before it is cut. The last piece has too few walks.
       Way{ends, 4, {3, 448, 384}, 4, 4, 3}}) {
    SCOPED_TRACE(way.c);
    SCOPED_TRACE(way.multiprocessors);
    Gpu gpu = test_gpu();
    gpu.multiprocessors = way.multiprocessors;
    GatedDeltaRuleSample shared(way.c), whole(way.c);
    GatedDeltaRuleSize size = size_of(shared.problem);
    size.kept_states = way.piece.batch > 0;
    const GatedDeltaRulePiece piece = size.kept_states ? way.piece : gpu_piece(size, false);
    const GatedDeltaRuleGpuPlan how = plan(size, false, Pass::kBackward, gpu, piece);
    EXPECT_TRUE(how.shares_walks);
    EXPECT_EQ(plan(size, false, Pass::kForward, gpu, piece).scan.grid, way.forward);
    EXPECT_EQ(how.scan.grid, way.scan);
    EXPECT_EQ(how.reverse_scan.grid, way.reverse_scan);
    run(shared, 0xFF, gpu, {.piece = way.piece});
    expect_passed(shared.judge(gated_delta_rule_gpu_bound(way.c.dtype)));
    Gpu large = gpu;
    large.multiprocessors = 132;
    EXPECT_FALSE(plan(size, false, Pass::kBackward, large, piece).shares_walks);
    run(whole, 1, large, {.piece = way.piece});
    expect_same_bits(shared, whole);
  }
}

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
         .negative = true,
         .float_beta = true},
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
         .gate = true,
         .float_beta = true},
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
    // Keys so long that a token takes back more than there was.
    Case{.batch = 4,
         .length = 60,
         .heads = 1,
         .value_heads = 1,
         .K = 32,
         .V = 32,
         .dtype = kBf16,
         .norm = false,
         .largest_decay = 6,
         .largest_key = 0.6},
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
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  for (const DType type : {DType::kFloat32, kBf16}) {
    GatedDeltaRuleSample s({.batch = 4,
                            .length = 256,
                            .K = 16,
                            .V = 16,
                            .dtype = type,
                            .mode = Mode::kChunk,
                            .initial = true,
                            .norm = false,
                            .largest_decay = 200,
                            .largest_key = 30});
    for (const bool small : {false, true}) {
      const Gpu gpu = small ? small_gpu() : test_gpu();
      for (const Pass pass : {Pass::kForward, Pass::kBackward})
        EXPECT_EQ(plan(size_of(s.problem), s.problem.packed, pass, gpu).whole_sequences,
                  small && type == kBf16);
      run(s, 0xFF, gpu);
      for (const TensorView* view : {&s.problem.o, &s.problem.final_state, &s.gradients.q,
                                     &s.gradients.k, &s.gradients.g, &s.gradients.initial_state})
        for_each_index(view->shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
          ASSERT_TRUE(std::isfinite(read_element(*view, i, j, k, l)));
        });
    }
  }
}

TEST(GatedDeltaRuleGpuOperator, GateOfMinusInfinityForgets) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const Case small{.batch = 1, .length = 40, .heads = 1, .value_heads = 1, .mode = Mode::kChunk};
  Case recurrent = small, half = small, recording = small;
  recurrent.mode = Mode::kRecurrent;
  half.dtype = kBf16;
  half.batch = 4;  // whole sequences
  recording.dtype = kBf16;
  recording.K = 64;
  recording.V = 128;
  for (const Case& c : {small, recurrent, half, recording}) {
    GatedDeltaRuleSample infinite(c), strong(c);
    infinite.g.set(0, 21, 0, 0, -std::numeric_limits<double>::infinity());
    strong.g.set(0, 21, 0, 0, -1e4);
    run(infinite, 0xFF, small_gpu());
    run(strong, 0xFF, small_gpu());
    for (const auto& [a, b] : {std::pair{&infinite.o, &strong.o},
                               {&infinite.final_state, &strong.final_state},
                               {&infinite.gk, &strong.gk},
                               {&infinite.gg, &strong.gg}})
      EXPECT_EQ(a->bytes(), b->bytes());
  }
}

// Tokens of a step are sequences of one token; the third one's slot is not in the pool.
TEST(GatedDeltaRuleGpuOperator, StepsAdvanceTheirSlots) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
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
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
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

// A block of the gradients' kernel of warp groups that takes all items of a launch, of several value heads and in one slice of V
// or more; one part of the keys or two, with and without a norm, behind which a part waits. Tiles come and go in boxes, where
// the GPU has such, at odd addresses in packs, and either way in one launch where sequences are packed: the bits are the same.
class GatedDeltaRuleGpuGroups : public ::testing::TestWithParam<Case> {};
const Case kBlockCases[] = {
    Case{.batch = 1, .length = 130, .value_heads = 6, .K = 128, .V = 64, .dtype = kBf16},
    Case{.batch = 1,
         .length = 130,
         .heads = 1,
         .K = 72,
         .V = 40,
         .dtype = kBf16,
         .norm = false,
         .largest_key = 0.2},
    Case{.batch = 1,
         .length = 130,
         .value_heads = 4,
         .K = 192,
         .V = 72,
         .dtype = kFp16,
         .initial = true,
         .norm = false,
         .largest_key = 0.1},
    Case{.batch = 1,
         .length = 130,
         .value_heads = 4,
         .K = 192,
         .V = 72,
         .dtype = kBf16,
         .reverse = true,
         .norm = false,
         .largest_key = 0.1},
    Case{.batch = 1,
         .length = 200,
         .heads = 1,
         .K = 256,
         .V = 72,
         .dtype = kBf16,
         .bounds = {3, 70, 140, 200},
         .gate = true}};

TEST_P(GatedDeltaRuleGpuGroups, BlocksTakeAllItems) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  Case c = GetParam();
  c.mode = Mode::kChunk;
  GatedDeltaRuleSample aligned(c);
  run(aligned, 0xFF, test_gpu(), {.largest_grid = 1});
  expect_passed(aligned.judge(gated_delta_rule_gpu_bound(c.dtype)));
  c.misalign = 1;
  GatedDeltaRuleSample odd(c);
  run(odd, 1, test_gpu(), {.largest_grid = 1});
  expect_same_numbers(aligned, odd);
}
INSTANTIATE_TEST_SUITE_P(Blocks, GatedDeltaRuleGpuGroups, ::testing::ValuesIn(kBlockCases));

TEST(GatedDeltaRuleGpuOperator, GradientsOfKeysThatNobodyWants) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  for (const int64_t K : {72, 256})
    for (const int misalign : {0, 1}) {
      const Case c{.batch = 1,
                   .length = 70,
                   .heads = 1,
                   .value_heads = 1,
                   .K = K,
                   .V = 40,
                   .dtype = kBf16,
                   .mode = Mode::kChunk,
                   .misalign = misalign};
      GatedDeltaRuleSample all(c);
      run(all, 0xFF, test_gpu(), {.largest_grid = 1});
      const auto untouched = GatedDeltaRuleSample(c).gq.bytes();
      for (const auto& [of_q, of_k] : {std::pair{false, true}, {true, false}, {false, false}}) {
        SCOPED_TRACE(::testing::Message() << c << ", of q and k: " << of_q << of_k);
        GatedDeltaRuleSample some(c);
        run(some, 0xFF, test_gpu(), {.largest_grid = 1, .of_q = of_q, .of_k = of_k});
        EXPECT_EQ(some.gq.bytes(), of_q ? all.gq.bytes() : untouched);
        EXPECT_EQ(some.gk.bytes(), of_k ? all.gk.bytes() : untouched);
        EXPECT_EQ(some.gv.bytes(), all.gv.bytes());
        EXPECT_EQ(some.gg.bytes(), all.gg.bytes());
        EXPECT_EQ(some.gbeta.bytes(), all.gbeta.bytes());
      }
    }
}

// By every kernel that stores some: on the small device scans of warp groups make their records.
TEST(GatedDeltaRuleGpuOperator, FinalStatesThatNobodyWants) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const Case groups = {.batch = 2,
                       .length = 70,
                       .heads = 1,
                       .value_heads = 2,
                       .K = 40,
                       .V = 72,
                       .dtype = kBf16,
                       .mode = Mode::kChunk,
                       .initial = true};
  Case single = groups, deep = groups, sequences = groups, recurrent = groups;
  single.dtype = DType::kFloat32;
  single.V = deep.V = 33;
  deep.K = 130;
  sequences.value_heads = 1;
  sequences.batch = 4;
  sequences.K = sequences.V = 20;
  recurrent.mode = Mode::kRecurrent;
  for (const Case& c : {groups, single, deep, sequences, recurrent})
    for (const Gpu& gpu : {test_gpu(), small_gpu()}) {
      SCOPED_TRACE(c);
      GatedDeltaRuleSample with(c), without(c);
      if (c.V == groups.V && c.mode == Mode::kChunk)
        EXPECT_EQ(plan(size_of(with.problem), false, Pass::kForward, gpu).makes_records,
                  gpu.multiprocessors == 1);
      run(with, 0xFF, gpu);
      const std::vector<std::byte> untouched = without.final_state.bytes();
      run(without, 0xFF, gpu, {.final_state = false});
      EXPECT_EQ(without.final_state.bytes(), untouched);
      without.final_state.memory() = with.final_state.memory();
      expect_same_bits(with, without);
    }
}

// Two and four warps that share the state's columns, several parts of V, more value heads than blocks.
TEST(GatedDeltaRuleGpuOperator, CutsOfTheStateAgree) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
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

// A kernel that followed them would be caught by the address sanitizer, or on a GPU by memcheck.
TEST(GatedDeltaRuleGpuBounds, ThatLieTouchNothingElse) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
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
