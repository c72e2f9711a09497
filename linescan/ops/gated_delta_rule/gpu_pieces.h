// What of a problem the passes of gated_delta_rule on GPUs work through at once, and the segments they cut sequences
// into: pure functions, used by the planner and by whoever makes room for what a forward pass keeps.
#pragma once

#include <cstdint>

#include "linescan/ops/gated_delta_rule/plan.h"

namespace linescan {

// Heads so small that a warp may walk a whole sequence: they are never cut.
bool delta_heads_are_small(const GatedDeltaRuleSize& size);

// Tokens of a sequence; of packed ones, whose lengths nobody knows here, the average.
int64_t delta_usual_length(const GatedDeltaRuleSize& size);

// What a backward pass works through at once, for the sake of its workspace: so many batch items, and so many tokens of
// a sequence. Segments of it, multiples of 64 tokens, are walked side by side where states are found again, each from
// the state that the forward pass kept of its start. Packed sequences, whose lengths only the device knows, come with all of their
// tokens, and some of the heads.
//
// split: sequences and heads are few, and segments are walked side by side everywhere. The states at their boundaries are
// found beforehand: segments walk alone, and a chain over them corrects what they left (segment_chain.cu).
struct GatedDeltaRulePiece {
  int64_t batch = 0, tokens = 0, segment = 0;
  bool split = false;
  // The forward pass keeps the records of chunks, too: a backward pass does not make them again. They are 18 KiB a chunk of 64
  // tokens and value head, in half types.
  bool keeps_records = false;
  int64_t heads = 0;  // of q and k, with their value heads; 0: all
  // Beside records: the forward pass keeps states and corrections of the first piece, too, whose sequences are whole, so that they are
  // not found again. 48 KiB a chunk and value head, in half types with K = V = 128. Only a scan that makes records leaves them; where the
  // device prefers other kernels their room stays empty.
  bool keeps_states = false;

  bool operator==(const GatedDeltaRulePiece&) const = default;
};
// Numbers of segments of a batch item. Packed sequences have segments where they are split, and more numbers than segments
// (gpu_segments.cuh).
int64_t delta_segment_count(const GatedDeltaRuleSize& size, bool packed,
                            const GatedDeltaRulePiece& piece);
// Whether the blocks of a scan that makes records, with 128 columns of V each, come in so much fewer waves than those with 64 that they
// are faster than these behind the records' kernel.
bool delta_recording_pays(int64_t heads, int64_t values, int64_t multiprocessors);

// A function of the problem alone, so that what a forward pass keeps does not depend on the device.
GatedDeltaRulePiece gpu_piece(const GatedDeltaRuleSize& size, bool packed);
// Numbers of GatedDeltaRuleProblem::states. First the records of all chunks, if they are kept; then states and corrections of the
// first piece's chunks, if those are. If the piece is split, turned transitions of all segments but the first and
// the last (of packed sequences numbers, some of which nobody writes), [segments - 2, batch, value_heads, padded keys, padded keys]; then where all segments but the first start, [segments - 1,
// batch, value_heads, K, V].
int64_t gpu_kept_states(const GatedDeltaRuleSize& size, bool packed,
                        const GatedDeltaRulePiece& piece);
// Whether records may be kept: those of a piece are neighbours, all devices cut chunks alike, and the forward pass has chunks
// (below 64 tokens mode auto may not).
bool may_keep_records(const GatedDeltaRuleSize& size, bool packed,
                      const GatedDeltaRulePiece& piece);
// The first of these numbers, and the second.
int64_t gpu_kept_records(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece);
int64_t gpu_kept_chunk_states(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece);

// Whether a forward pass on so many multiprocessors, with blocks of so many columns, gains by walking the piece's segments side by
// side; its gain is a backward pass's, too.
bool delta_split_pays(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece,
                      int64_t multiprocessors, int64_t block_columns);
// How a forward pass that keeps nothing is split; not at all where nothing is gained. two_alone: two blocks that walk a segment alone
// share a multiprocessor.
GatedDeltaRulePiece delta_best_split(const GatedDeltaRuleSize& size, int64_t multiprocessors,
                                     int64_t block_columns, bool two_alone);

}  // namespace linescan
