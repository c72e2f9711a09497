// How gated_delta_rule's plans for GPUs cut the work, and its backward pass in pieces against the double reference.

#include <gtest/gtest.h>

#include <cstring>
#include <utility>

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

}  // namespace
}  // namespace linescan::testing
