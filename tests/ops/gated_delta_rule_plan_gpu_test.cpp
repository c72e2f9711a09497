// How gated_delta_rule's plans for GPUs cut the work; and the kernels, with work that is cut, against the double reference.

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "linescan/base/error.h"
#include "tests/ops/gated_delta_rule_gpu_run.h"
#include "tests/support/judging.h"

namespace linescan::testing {
namespace {

using Case = GatedDeltaRuleCase;
using Mode = GatedDeltaRuleMode;

constexpr DType kBf16 = DType::kBFloat16, kFp16 = DType::kFloat16;

// A backward pass that takes parts of the batch, and of sequences, one after the other, and finds the states of their
// segments side by side.
TEST(GatedDeltaRuleGpuPieces, AgreeWithReference) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
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
        Cut{pair, {1, 64, 64}, 4}, Cut{pair, {1, 192, 64}, 2}, Cut{single, {2, 128, 64}, 2},
        // With records that the forward pass keeps.
        Cut{groups, {1, 128, 64, false, true}, 9}, Cut{groups, {3, 300, 128, false, true}, 1},
        Cut{groups, {2, 300, 300, false, true}, 2}, Cut{single, {1, 128, 64, false, true}, 4}}) {
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

// Packed sequences, some heads after the others: the same bits, of the parameters' gradients, too.
TEST(GatedDeltaRuleGpuPieces, OfPackedSequencesAreHeads) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const Case groups = {.batch = 1,
                       .length = 90,
                       .heads = 3,
                       .value_heads = 6,
                       .K = 40,
                       .V = 33,
                       .dtype = kBf16,
                       .bounds = {3, 70, 70, 80},
                       .initial = true,
                       .gate = true,
                       .gate_bias = true};
  Case single = groups;
  single.dtype = DType::kFloat32;
  single.value_heads = 3;
  single.V = 9;
  single.reverse = single.v_first = single.heads_first = true;
  for (Case c : {groups, single}) {
    SCOPED_TRACE(c);
    c.mode = Mode::kChunk;
    GatedDeltaRuleSample whole(c), pieces(c), one(c);
    const GatedDeltaRulePiece all = {1, c.length, c.length};
    GatedDeltaRulePiece pair = all, single_head = all;
    pair.heads = 2, single_head.heads = 1;
    const GatedDeltaRuleSize size = size_of(whole.problem);
    const auto planned = [&](const GatedDeltaRulePiece& piece) {
      return plan(size, true, Pass::kBackward, test_gpu(), piece);
    };
    EXPECT_EQ(planned(all).pieces, 1);
    EXPECT_EQ(planned(pair).pieces, 2);
    EXPECT_EQ(planned(single_head).pieces, 3);
    EXPECT_LT(2 * planned(single_head).workspace_bytes, planned(all).workspace_bytes);
    run(whole, 0xFF, test_gpu(), {.piece = all});
    run(pieces, 0xFF, test_gpu(), {.piece = pair});
    run(one, 1, test_gpu(), {.largest_grid = 1, .piece = single_head, .keep = false});
    expect_passed(pieces.judge(gated_delta_rule_gpu_bound(c.dtype)));
    expect_same_bits(whole, pieces);
    expect_same_bits(whole, one);
  }
}

TEST(GatedDeltaRuleGpuPieces, ExpectsWhatIsKeptAtAMultipleOf16Bytes) {
  GatedDeltaRuleSample sample(Case{.batch = 1,
                                   .length = 1536,
                                   .heads = 1,
                                   .value_heads = 1,
                                   .K = 64,
                                   .V = 64,
                                   .dtype = kBf16,
                                   .mode = Mode::kChunk});
  const GatedDeltaRuleSize size = size_of(sample.problem);
  const int64_t kept = gpu_kept_states(size, false, gpu_piece(size, false));
  ASSERT_GT(kept, 0);
  SampleTensor memory({kept + 4}, DType::kFloat32);
  const auto check_at = [&](int64_t number) {
    sample.problem.states = memory.view();
    sample.problem.states.shape = {kept};
    sample.problem.states.data = memory.view().as<float>() + number;
    check(sample.problem);
  };
  const auto address = reinterpret_cast<std::uintptr_t>(memory.view().data);
  const auto first = static_cast<int64_t>((16 - address % 16) % 16 / sizeof(float));
  check_at(first);
  EXPECT_THROW(check_at(first + 1), InvalidArgument);
}

// Few long sequences: segments walk side by side from states that a chain over their own walks has found.
class GatedDeltaRuleGpuSplit : public ::testing::TestWithParam<Case> {};

TEST_P(GatedDeltaRuleGpuSplit, AgreesWithReference) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  Case c = GetParam();
  c.mode = Mode::kChunk;
  const bool packed = !c.bounds.empty();
  const GatedDeltaRulePiece whole = {c.batch, c.length, 64, true};
  const Gpu& ampere = find_gpu("a100");
  struct Way {
    Twist twist;
    const Gpu& gpu;
  };
  std::vector<Way> ways = {
      {{.piece = whole}, test_gpu()},
      {{.piece = whole}, ampere},
      {{.piece = {c.batch, c.length, 192, true}}, ampere},
      {{.largest_grid = 1, .piece = {c.batch, c.length, 128, true}}, test_gpu()},
      {{.largest_grid = 5, .piece = whole, .keep = false}, test_gpu()}};
  if (!packed)  // these come all at once
    for (const int64_t tokens : {192, 128})
      ways.push_back({{.largest_grid = 3, .piece = {1, tokens, 64, true}}, test_gpu()});
  const GatedDeltaRuleSample::Expected expected = GatedDeltaRuleSample(c).expected();
  for (const auto& [twist, gpu] : ways) {
    SCOPED_TRACE(twist.piece.tokens);
    SCOPED_TRACE(twist.piece.segment);
    SCOPED_TRACE(gpu.name);
    GatedDeltaRuleSample sample(c);
    GatedDeltaRuleSize size = size_of(sample.problem);
    EXPECT_GT(plan(size, packed, Pass::kForward, gpu, twist.piece).ends.grid, 0);
    EXPECT_EQ(plan(size, packed, Pass::kBackward, gpu, twist.piece).ends.grid,
              0);  // nothing is kept
    size.kept_states = true;
    EXPECT_GT(plan(size, packed, Pass::kBackward, gpu, twist.piece).ends.grid, 0);
    run(sample, 0xFF, gpu, twist);
    expect_passed(sample.judge(expected, gated_delta_rule_gpu_bound(c.dtype)));
  }
}

TEST_P(GatedDeltaRuleGpuSplit, ScansAtOnceGiveTheSameBits) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  Case c = GetParam();
  c.mode = Mode::kChunk;
  std::vector<GatedDeltaRulePiece> pieces = {{c.batch, c.length, 64, true}};
  if (c.bounds.empty()) {
    pieces.push_back({1, 128, 64, true});
    pieces.push_back({c.batch, 128, 64});  // in turn
  }
  for (const GatedDeltaRulePiece& piece : pieces) {
    SCOPED_TRACE(piece.tokens);
    SCOPED_TRACE(piece.split);
    GatedDeltaRuleSample one(c);
    run(one, 0xFF, test_gpu(), {.piece = piece});
    for (int repeat = 0; repeat < 3; ++repeat) {
      GatedDeltaRuleSample two(c);
      run(two, 0xFF, test_gpu(), {.piece = piece, .two_streams = true});
      expect_same_bits(one, two);
    }
  }
}

TEST_P(GatedDeltaRuleGpuSplit, TakesTheFinalStateForTheInitialOne) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  Case c = GetParam();
  c.mode = Mode::kChunk;
  c.initial = true;
  const GatedDeltaRulePiece piece = {c.batch, c.length, 64, true};
  GatedDeltaRuleSample apart(c), in_place(c);
  run(apart, 0xFF, test_gpu(), {.piece = piece, .keep = false});
  run(in_place, 0xFF, test_gpu(),
      {.largest_grid = 1, .piece = piece, .keep = false, .in_place = true});
  EXPECT_EQ(apart.o.bytes(), in_place.o.bytes());
  EXPECT_EQ(apart.final_state.bytes(), in_place.final_state.bytes());
}

TEST_P(GatedDeltaRuleGpuSplit, RepeatsBitByBit) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  Case c = GetParam();
  c.mode = Mode::kChunk;
  const GatedDeltaRulePiece piece = {c.batch, c.length, 64, true};
  GatedDeltaRuleSample one(c), two(c);
  run(one, 0xFF, test_gpu(), {.piece = piece});
  run(two, 1, test_gpu(), {.largest_grid = 1, .piece = piece});
  expect_same_bits(one, two);
}

INSTANTIATE_TEST_SUITE_P(Sizes, GatedDeltaRuleGpuSplit,
                         ::testing::Values(Case{.batch = 2,
                                                .length = 300,
                                                .heads = 1,
                                                .value_heads = 2,
                                                .K = 40,
                                                .V = 33,
                                                .dtype = kBf16,
                                                .initial = true,
                                                .gate = true,
                                                .gate_bias = true},
                                           Case{.batch = 1,
                                                .length = 260,
                                                .heads = 2,
                                                .value_heads = 2,
                                                .K = 128,
                                                .V = 70,
                                                .dtype = kBf16,
                                                .reverse = true,
                                                .v_first = true},
                                           Case{.batch = 1,
                                                .length = 320,
                                                .heads = 1,
                                                .value_heads = 1,
                                                .K = 130,
                                                .V = 40,
                                                .dtype = kFp16,
                                                .initial = true},
                                           Case{.batch = 2,
                                                .length = 257,
                                                .heads = 1,
                                                .value_heads = 1,
                                                .K = 20,
                                                .V = 40,
                                                .reverse = true,
                                                .initial = true,
                                                .v_first = true},
                                           Case{.batch = 1,
                                                .length = 256,
                                                .heads = 1,
                                                .value_heads = 1,
                                                .K = 300,
                                                .V = 17,
                                                .dtype = kBf16,
                                                .initial = true}));

// Long ones, short ones and empty ones, and tokens of none.
INSTANTIATE_TEST_SUITE_P(Packed, GatedDeltaRuleGpuSplit,
                         ::testing::Values(Case{.batch = 1,
                                                .length = 480,
                                                .heads = 1,
                                                .value_heads = 2,
                                                .K = 40,
                                                .V = 33,
                                                .dtype = kBf16,
                                                .bounds = {3, 270, 270, 271, 399, 470},
                                                .initial = true,
                                                .gate = true,
                                                .gate_bias = true},
                                           Case{.batch = 1,
                                                .length = 330,
                                                .heads = 1,
                                                .value_heads = 1,
                                                .K = 128,
                                                .V = 70,
                                                .dtype = kFp16,
                                                .bounds = {0, 330},
                                                .reverse = true,
                                                .v_first = true},
                                           Case{.batch = 1,
                                                .length = 400,
                                                .heads = 1,
                                                .value_heads = 1,
                                                .K = 130,
                                                .V = 40,
                                                .dtype = kBf16,
                                                .bounds = {-9, 5, 3, 260, 1000, 12},
                                                .reverse = true,
                                                .initial = true},
                                           Case{.batch = 1,
                                                .length = 300,
                                                .heads = 1,
                                                .value_heads = 2,
                                                .K = 20,
                                                .V = 40,
                                                .bounds = {10, 203, 300},
                                                .initial = true,
                                                .v_first = true},
                                           // Numbers in front of the first sequence.
                                           Case{.batch = 1,
                                                .length = 470,
                                                .heads = 1,
                                                .value_heads = 1,
                                                .K = 40,
                                                .V = 40,
                                                .dtype = kBf16,
                                                .bounds = {200, 200, 400, 466},
                                                .initial = true},
                                           Case{.batch = 1,
                                                .length = 300,
                                                .heads = 1,
                                                .value_heads = 1,
                                                .K = 64,
                                                .V = 40,
                                                .dtype = kBf16,
                                                .bounds = {128, 256},
                                                .reverse = true,
                                                .initial = true}));

TEST(GatedDeltaRuleGpuPieces, AreChosenByTheProblemAlone) {
  GatedDeltaRuleSize size{.batch = 8,
                          .sequences = 8,
                          .length = 1024,
                          .heads = 32,
                          .value_heads = 32,
                          .K = 128,
                          .V = 128,
                          .dtype = kBf16};
  const auto kept = [&](bool packed) {
    return gpu_kept_states(size, packed, gpu_piece(size, packed));
  };
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
  // Of a chunk and value head: the record, S, gS and u. gX waits where the gradient of v will be.
  const int64_t units = 128 * 32, bytes = 18432 + 2 * (2 * 128 * 128 + 64 * 128);
  EXPECT_LT(workspace(), units * (bytes + 1024));
  // Packed: one sequence fills one wave with all of its heads, thirty-two do with one of them.
  const auto packed_heads = [&](int64_t sequences) {
    GatedDeltaRuleSize packed = size;
    packed.sequences = sequences;
    const GatedDeltaRulePiece piece = gpu_piece(packed, true);
    EXPECT_FALSE(piece.split);
    EXPECT_EQ(piece.tokens, 8192);
    return piece.heads;
  };
  EXPECT_EQ(packed_heads(1), 0);  // all
  EXPECT_LT(packed_heads(32), 16);
  size.mode = Mode::kRecurrent;
  EXPECT_EQ(kept(false), 0);
  size.mode = Mode::kChunk;
  GatedDeltaRuleSize shared = size;  // heads of q and k: records have room
  shared.heads = 16;
  shared.value_heads = 64;
  EXPECT_EQ(gpu_piece(shared, false), (GatedDeltaRulePiece{1, 2048, 2048, false, true}));
  EXPECT_EQ(gpu_kept_states(shared, false, gpu_piece(shared, false)),
            128 * 64 * (18432 / 4) + 3 * 64 * 128 * 128);
  shared.kept_states = true;
  const auto with_records = plan(shared, false, Pass::kBackward, gpu);
  EXPECT_EQ(plan(shared, false, Pass::kForward, gpu).kept_bytes,
            4 * gpu_kept_states(shared, false, gpu_piece(shared, false)));
  EXPECT_EQ(with_records.records.grid, 0);
  EXPECT_NE(to_string(with_records).find("kept by the forward pass"), std::string::npos);
  shared.kept_states = false;
  EXPECT_FALSE(plan(shared, false, Pass::kForward, gpu).piece.keeps_records);
  GatedDeltaRuleSize many =
      shared;  // sequences: whole ones, so that a piece's records are neighbours
  many.batch = many.sequences = 8;
  many.length = 4096;
  EXPECT_EQ(gpu_piece(many, false), (GatedDeltaRulePiece{2, 4096, 4096, false, true, 0, true}));
  // Of the two that are done first states and corrections are kept, too; a backward pass has room for those of the others.
  const int64_t first_states = 2 * 64 * 64 * (128 + 64) * 128 / 2;
  EXPECT_EQ(gpu_kept_states(many, false, gpu_piece(many, false)),
            8 * 64 * 64 * (18432 / 4) + first_states);
  many.kept_states = true;
  EXPECT_TRUE(plan(many, false, Pass::kForward, gpu).piece.keeps_states);
  const auto of_pairs = plan(many, false, Pass::kBackward, gpu);
  EXPECT_TRUE(of_pairs.piece.keeps_states);
  EXPECT_NE(to_string(of_pairs).find("states of the first piece, too"), std::string::npos);
  GatedDeltaRulePiece all = gpu_piece(many, false);
  all.batch = 8;
  const auto at_once = plan(many, false, Pass::kBackward, gpu, all);
  EXPECT_LT(at_once.workspace_bytes, 4 * (of_pairs.workspace_bytes - 4 * first_states) + 1024);
  EXPECT_FALSE(plan(many, false, Pass::kBackward, find_gpu("a100")).piece.keeps_states);
  many.kept_states = false;
  // Not where no device would have such a scan.
  GatedDeltaRuleSize single = many, narrow = many;
  single.dtype = DType::kFloat32;
  narrow.V = 64;
  EXPECT_FALSE(gpu_piece(single, false).keeps_states);
  EXPECT_FALSE(gpu_piece(narrow, false).keeps_states);
  many.batch = many.sequences = 6;  // fewer at once
  EXPECT_EQ(gpu_piece(many, false), (GatedDeltaRulePiece{1, 4096, 4096, false, true, 0, true}));
  many.batch = many.sequences = 16;
  many.value_heads = 32;  // two sequences would be a wave, too, but pieces of four are small enough
  EXPECT_EQ(gpu_piece(many, false), (GatedDeltaRulePiece{4, 4096, 4096, false, true, 0, true}));
  many.batch = many.sequences = 4;
  many.length = 6144;
  many.heads = 6;
  many.value_heads = 24;  // whole sequences would make the workspace too large
  EXPECT_EQ(gpu_piece(many, false).tokens, 2048);
  GatedDeltaRuleSize small = size;  // heads: more pieces, and shorter ones
  small.batch = small.sequences = 8;
  small.length = 2048;
  small.heads = small.value_heads = 16;
  small.K = small.V = 64;
  EXPECT_EQ(gpu_piece(small, false), (GatedDeltaRulePiece{8, 512, 512}));
  // Corrections take the place of P where records are made anew, and V is no wider than a chunk is long.
  small.kept_states = true;
  const auto in_place = plan(small, false, Pass::kBackward, gpu);
  EXPECT_TRUE(in_place.corrections_take_place);
  EXPECT_EQ(in_place.corrections_at, in_place.records_at + 64 * 64 * 2);
  EXPECT_EQ(in_place.correction_step, in_place.record_bytes / 2);
  EXPECT_FALSE(of_pairs.corrections_take_place);
  EXPECT_EQ(of_pairs.correction_step, 64 * 128);
  GatedDeltaRuleSize longer = size;
  longer.length = 32768;  // shorter pieces, so that records have room
  EXPECT_EQ(gpu_piece(longer, false), (GatedDeltaRulePiece{1, 6656, 3328, false, true}));
  shared.K = shared.V = 256;
  EXPECT_FALSE(gpu_piece(shared, false).keeps_records);
  GatedDeltaRuleSize few = size;  // heads: transitions of all segments but two are kept as well
  few.heads = 2;
  few.value_heads = 8;
  EXPECT_EQ(gpu_piece(few, false), (GatedDeltaRulePiece{1, 4160, 832, true}));
  EXPECT_EQ(gpu_kept_states(few, false, gpu_piece(few, false)), (9 + 8) * 8 * 128 * 128);
  GatedDeltaRuleSize shorter = few;  // a workspace that is small enough
  shorter.length = 6144;
  EXPECT_EQ(gpu_piece(shorter, false), (GatedDeltaRulePiece{1, 6144, 768, true}));
  few.kept_states = true;
  EXPECT_TRUE(plan(few, false, Pass::kBackward, gpu).piece.split);
  // Their scans come at once, unless one leaves what the other has read in its place, or a pass is short.
  EXPECT_TRUE(plan(few, false, Pass::kBackward, gpu).scans_side_by_side);
  EXPECT_FALSE(of_pairs.scans_side_by_side);
  GatedDeltaRuleSize few_narrow = few;
  few_narrow.V = 64;
  const auto one_behind_the_other = plan(few_narrow, false, Pass::kBackward, gpu);
  EXPECT_TRUE(one_behind_the_other.piece.split);
  EXPECT_TRUE(one_behind_the_other.corrections_take_place);
  EXPECT_FALSE(one_behind_the_other.scans_side_by_side);
  GatedDeltaRuleSize half = size;  // of the multiprocessors have a block of the reverse scan
  half.heads = half.value_heads = 32;
  EXPECT_TRUE(plan(half, false, Pass::kBackward, gpu).scans_side_by_side);
  half.value_heads = 64;
  EXPECT_FALSE(plan(half, false, Pass::kBackward, gpu).scans_side_by_side);
  half.value_heads = 32;
  half.length = 1000;
  EXPECT_FALSE(plan(half, false, Pass::kBackward, gpu).scans_side_by_side);
  const auto unsplit = plan(few, false, Pass::kBackward, find_gpu("orin"));
  EXPECT_FALSE(unsplit.piece.split);
  EXPECT_EQ(unsplit.kept_bytes, 4 * gpu_kept_states(few, false, gpu_piece(few, false)));
  few.kept_states = false;
  EXPECT_FALSE(plan(few, false, Pass::kBackward, gpu).piece.split);
  // Packed, as if all were equally long; they have up to one segment more each.
  few.sequences = 2;
  EXPECT_EQ(gpu_piece(few, true), (GatedDeltaRulePiece{1, 8192, 1024, true}));
  EXPECT_EQ(gpu_kept_states(few, true, gpu_piece(few, true)), (9 + 8) * 8 * 128 * 128);
  few.sequences = 32;  // a head of q and k has two waves of blocks
  EXPECT_EQ(gpu_piece(few, true), (GatedDeltaRulePiece{1, 8192, 8192, false, false, 1}));
  few.sequences = 16;
  EXPECT_EQ(gpu_piece(few, true), (GatedDeltaRulePiece{1, 8192, 8192}));
  few.sequences = 0;
  EXPECT_EQ(gpu_piece(few, true), (GatedDeltaRulePiece{1, 8192, 8192}));
  size.value_heads = 0;
  EXPECT_EQ(kept(false), 0);
  EXPECT_FALSE(plan(size, false, Pass::kBackward, gpu).warp_groups);  // gradients of q are zeros
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
  GatedDeltaRuleSize full = few;  // nothing is split: blocks of 16 columns of V
  full.batch = full.sequences = 2;
  full.length = 500;
  EXPECT_EQ(plan(full, false, Pass::kForward, gpu).scan.grid, 128);
  // Eight segments of 16 chunks, two blocks each; alone, seven of them, two blocks for the end and two for the transition: two share a
  // multiprocessor.
  const GatedDeltaRuleGpuPlan split = plan(few, false, Pass::kForward, find_gpu("h100"));
  EXPECT_EQ(split.piece, (GatedDeltaRulePiece{1, 8192, 16 * 64, true}));
  EXPECT_EQ(split.scan.grid, 8 * 8 * 2);
  EXPECT_EQ(split.ends.grid, 8 * 7 * (2 + 2));
  EXPECT_EQ(split.chain.grid, 8 * 128 / 8);
  // 256 chunks and heads of q: two blocks each, with two value heads.
  EXPECT_EQ(split.record_parts, 2);
  EXPECT_EQ(split.records.grid, 128 * 2 * 2);
  GatedDeltaRuleSize packed = few;  // two sequences: numbers of 8 + 2 segments
  packed.sequences = 2;
  const GatedDeltaRuleGpuPlan both = plan(packed, true, Pass::kForward, find_gpu("h100"));
  EXPECT_EQ(both.piece, (GatedDeltaRulePiece{1, 8192, 16 * 64, true}));
  EXPECT_EQ(both.scan.grid, 8 * (8 + 2) * 2);
  EXPECT_EQ(both.ends.grid, 8 * (7 + 2) * (2 + 2));
  EXPECT_EQ(both.chain.grid, 2 * 8 * 128 / 8);
  GatedDeltaRuleSize short_ones = few;
  short_ones.length = 500;
  EXPECT_FALSE(plan(short_ones, false, Pass::kForward, find_gpu("h100")).piece.split);
  EXPECT_FALSE(plan(few, false, Pass::kForward, find_gpu("orin")).piece.split);  // is full
  GatedDeltaRuleSize recurrent = few;
  recurrent.mode = Mode::kRecurrent;
  EXPECT_FALSE(plan(recurrent, false, Pass::kForward, find_gpu("h100")).piece.split);
  EXPECT_FALSE(plan(few, false, Pass::kForward, gpu).warp_groups);
  const Gpu& hopper = find_gpu("h100");
  const GatedDeltaRuleGpuPlan in_groups = plan(few, false, Pass::kForward, hopper);
  EXPECT_TRUE(in_groups.warp_groups);
  EXPECT_LE(2 * (in_groups.ends.shared_bytes + 1024), hopper.shared_per_multiprocessor);
  GatedDeltaRuleSize many = few;
  many.heads = many.value_heads = 64;
  many.batch = many.sequences = 8;
  EXPECT_EQ(plan(many, false, Pass::kForward, gpu).column_warps, 4);
  // Two chains of 64 columns a block where that leaves fewer waves of blocks; then there are no records in memory.
  const GatedDeltaRuleGpuPlan recording = plan(many, false, Pass::kForward, find_gpu("h100"));
  EXPECT_TRUE(recording.makes_records);
  EXPECT_EQ(recording.column_warps, 8);
  EXPECT_EQ(recording.scan.grid, 8 * 64);
  EXPECT_EQ(recording.records, DeltaLaunch{});
  EXPECT_EQ(recording.workspace_bytes, 0);
  EXPECT_NE(to_string(recording).find("records         made by the scan"), std::string::npos);
  GatedDeltaRuleSize shorter_walks = many;  // as many to each block, prepared one behind the other
  shorter_walks.length = 4096;
  EXPECT_EQ(plan(shorter_walks, false, Pass::kForward, find_gpu("h100")).scan.grid, 132);
  shorter_walks.batch = 1;
  shorter_walks.sequences = 16;  // packed ones may differ
  EXPECT_EQ(plan(shorter_walks, true, Pass::kForward, find_gpu("h100")).scan.grid, 16 * 64);
  shorter_walks.sequences = 64;
  EXPECT_EQ(plan(shorter_walks, true, Pass::kForward, find_gpu("h100")).scan.grid, 64 * 64 / 3 + 1);
  GatedDeltaRuleSize as_many = many;  // as blocks of 64 columns find a multiprocessor
  as_many.batch = as_many.sequences = 1;
  EXPECT_FALSE(plan(as_many, false, Pass::kForward, find_gpu("h100")).makes_records);
  GatedDeltaRuleSize narrow_values = many;
  narrow_values.V = 64;
  EXPECT_FALSE(plan(narrow_values, false, Pass::kForward, find_gpu("h100")).makes_records);
  EXPECT_FALSE(plan(many, false, Pass::kBackward, find_gpu("h100")).makes_records);
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
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    EXPECT_TRUE(plan(wide, false, pass, hopper).deep_groups);
    EXPECT_EQ(plan(wide, false, pass, hopper).chunk, 64);
    EXPECT_FALSE(plan(wide, false, pass, gpu).deep_groups);
  }
  // Four blocks a head: 33 teams for 48 heads, and no more teams than heads.
  GatedDeltaRuleSize heads = wide;
  heads.batch = heads.sequences = 48;
  heads.heads = heads.value_heads = 1;
  heads.length = 2048;
  EXPECT_TRUE(plan(heads, false, Pass::kForward, hopper).shares_walks);
  EXPECT_EQ(plan(heads, false, Pass::kForward, hopper).scan.grid, 132);
  EXPECT_FALSE(plan(heads, true, Pass::kForward, hopper).shares_walks);
  heads.batch = heads.sequences = 66;
  EXPECT_FALSE(plan(heads, false, Pass::kForward, hopper).shares_walks);
  EXPECT_EQ(plan(heads, false, Pass::kForward, hopper).scan.grid, 66 * 4);
  // Every block of the gradients' kernel has a slot.
  EXPECT_EQ(plan(wide, false, Pass::kBackward, hopper).gradients.grid, hopper.multiprocessors);
  large.K = 512;
  large.dtype = DType::kFloat32;
  EXPECT_THROW(plan(large, false, Pass::kBackward, find_gpu("rtx4090")), Unsupported);
}

// Where multiprocessors would be idle the value heads of a chunk are several blocks', which need not have as many each.
TEST(GatedDeltaRuleGpuRecords, BlocksShareValueHeads) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const Case few{.batch = 1, .length = 70, .heads = 2, .value_heads = 6, .K = 24, .V = 40};
  Case half = few;
  half.dtype = kBf16;
  half.heads_first = true;
  const Case packed{.batch = 1,
                    .length = 90,
                    .heads = 1,
                    .value_heads = 5,
                    .K = 64,
                    .V = 40,
                    .dtype = kFp16,
                    .bounds = {3, 70, 70, 80},
                    .reverse = true,
                    .initial = true,
                    .gate = true,
                    .gate_bias = true,
                    .sigmoid = true,
                    .negative = true};
  const Case deep{.batch = 1,
                  .length = 130,
                  .heads = 1,
                  .value_heads = 3,
                  .K = 192,
                  .V = 40,
                  .dtype = kBf16,
                  .reverse = true};
  for (Case c : {few, half, packed, deep}) {
    SCOPED_TRACE(c);
    c.mode = Mode::kChunk;
    GatedDeltaRuleSample alone(c);
    const GatedDeltaRuleSize size = size_of(alone.problem);
    const int64_t group = c.value_heads / c.heads;
    std::vector<int64_t> seen;  // parts, while there are more and more multiprocessors
    Gpu gpu = test_gpu();
    for (gpu.multiprocessors = 1; seen.empty() || seen.back() < group; ++gpu.multiprocessors) {
      const GatedDeltaRuleGpuPlan how = plan(size, alone.problem.packed, Pass::kBackward, gpu);
      ASSERT_LT(gpu.multiprocessors, 100);
      if (!seen.empty() && seen.back() == how.record_parts) continue;
      SCOPED_TRACE(how.record_parts);
      EXPECT_EQ(how.records.grid, how.chunks * c.heads * how.record_parts);
      if (seen.empty()) {
        run(alone, 0xFF, gpu);
        expect_passed(alone.judge(gated_delta_rule_gpu_bound(c.dtype)));
      } else {
        for (const int64_t largest_grid : {kLargestGrid, int64_t{5}}) {
          GatedDeltaRuleSample shared(c);
          run(shared, 0xFF, gpu, {.largest_grid = largest_grid});
          expect_same_bits(shared, alone);
        }
      }
      seen.push_back(how.record_parts);
    }
    // None has fewer value heads than it could, and none has none: of five, not four.
    EXPECT_EQ(seen,
              group == 5 ? (std::vector<int64_t>{1, 2, 3, 5}) : (std::vector<int64_t>{1, 2, 3}));
  }
}

// Numbers wait in it between the kernels.
TEST(GatedDeltaRuleGpuGradients, ExpectRoomForThatOfV) {
  GatedDeltaRuleSample s({.dtype = kBf16});
  GatedDeltaRuleGradients gradients;
  gradients.q = s.gq.view();
  gradients.v = s.gv.view();
  EXPECT_NO_THROW(check_gpu(gradients));
  gradients.v = {};
  EXPECT_THROW(check_gpu(gradients), InvalidArgument);
}

}  // namespace
}  // namespace linescan::testing
