#include "linescan/ops/gated_delta_rule/gpu_pieces.h"

#include <algorithm>
#include <cmath>

#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"

namespace linescan {
namespace {

// The workspace of a piece should be no more than `share` of what a pass and its gradients leave behind; one of `small` bytes, or
// half as many again, is small enough. A piece of a sequence has no fewer tokens than these. The states of small heads are small, and
// so is what a piece of them costs.
struct PieceLimits {
  double share;
  int64_t small, fewest_tokens;
};
PieceLimits piece_limits(const GatedDeltaRuleSize& size) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return std::max(size.K, size.V) <= DeltaLayout::kPanel ? PieceLimits{0.375, 48 * kMiB, 512}
                                                         : PieceLimits{0.5, 64 * kMiB, 640};
}
// A segment of a piece has no fewer tokens than these; segments of a piece are no more.
constexpr int64_t kFewestSegmentTokens = 768, kMostSegments = 8;
// Records are kept, and states of the first piece, if what a pass and its gradients leave behind, its workspace and they are no more
// than so many times v, where K is V. A piece more costs as much time as so many records.
constexpr double kMostOfValues = 6.2;
constexpr int64_t kRecordsOfPiece = 2000;
// Blocks that a GPU works on at once: that of the larger ones. Pieces should not add waves of them.
constexpr int64_t kBlocksAtOnce = 132;
// Of packed sequences a piece has about so many waves of them, or more, and its workspace may be so much of what others may: numbers of
// chunks count one more for every sequence.
constexpr double kPackedWaves = 2, kPackedShare = 0.75;

// How long a wave of a scan's blocks of 128 columns that make records takes beside one of 64, to which the records' kernel is to be
// added: about 1.3 times as long with 32 heads and 8 x 1024 tokens (decisions 0037, 0062).
constexpr double kRecordingBlock = 1.4;

// What a split costs, in times that a block's walk needs for a chunk: the start and end of a walk; a chunk of one without
// outputs; the chain, and each of its boundaries. A split that gains less than a tenth is not worth its rounding. Where two walks without
// outputs share a multiprocessor, both take half as long again (decision 0070).
constexpr double kWalkChunks = 6, kAloneChunk = 0.75, kChainChunks = 3, kBoundaryChunks = 1;
constexpr double kSharedWalk = 1.5;
constexpr double kSplitGain = 0.9;
constexpr int64_t kMostSplitSegments = 32;

// With the chunks and the blocks of warp groups where there may be such.
DeltaLayout likely_layout(const GatedDeltaRuleSize& size) {
  const auto number = static_cast<int>(size_of(size.dtype));
  const auto keys = static_cast<int>(delta_padded_keys(size.K));
  return {number, keys, number == 2 && keys == DeltaLayout::kDeepKeys};
}

// Segments of a usual sequence.
int64_t usual_segments(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece) {
  GatedDeltaRuleSize usual = size;
  usual.length = delta_usual_length(size);
  return delta_segment_count(usual, /*packed=*/false, piece);
}

// Chunks that a forward pass goes through one after the other, when `heads` sequences and value heads of so many chunks
// are cut into segments and `at_once` blocks work at once.
struct SplitCost {
  int64_t heads, chunks, value_parts, key_parts, at_once;
  bool two_alone = false;  // whether two blocks that walk without outputs share a multiprocessor

  int64_t waves(int64_t blocks) const { return ceil_div(blocks, at_once); }
  double waves_alone(int64_t blocks) const {
    if (!two_alone) return static_cast<double>(waves(blocks));
    const int64_t full = blocks / (2 * at_once), rest = blocks % (2 * at_once);
    return kSharedWalk * static_cast<double>(full + (rest > at_once ? 1 : 0)) +
           (rest > 0 && rest <= at_once ? 1 : 0);
  }
  double in_turn(int64_t segments) const {
    return static_cast<double>(waves(heads * value_parts)) *
           (static_cast<double>(chunks) + kWalkChunks * static_cast<double>(segments));
  }
  double split(int64_t segments) const {
    if (segments == 1) return in_turn(1);
    const double alone =
        waves_alone(heads * (value_parts * (segments - 1) + key_parts * (segments - 2)));
    const int64_t together = waves(heads * value_parts * segments);
    const auto each = static_cast<double>(ceil_div(chunks, segments));
    return alone * (kAloneChunk * each + kWalkChunks) +
           static_cast<double>(together) * (each + kWalkChunks) + kChainChunks +
           kBoundaryChunks * static_cast<double>(segments);
  }
  bool pays(int64_t segments) const {
    return segments > 1 && split(segments) < kSplitGain * in_turn(segments);
  }
};
// Columns of V, or of a transition, of a scan's block where there are warp groups.
int64_t block_columns(const GatedDeltaRuleSize& size) {
  return likely_layout(size).deep ? 2 * DeltaLayout::kPanel : DeltaLayout::kPanel;
}
SplitCost split_cost(const GatedDeltaRuleSize& size, int64_t multiprocessors, int64_t columns) {
  constexpr int64_t kPanel = DeltaLayout::kPanel;
  return {size.sequences * size.value_heads, ceil_div(delta_usual_length(size), kPanel),
          ceil_div(size.V, columns), ceil_div(delta_padded_keys(size.K), columns), multiprocessors};
}

// Tokens of a segment: as many segments as a GPU has blocks for, and as are worth a walk.
int64_t segment_tokens(const GatedDeltaRuleSize& size, int64_t sequences, int64_t tokens) {
  const int64_t blocks = size.value_heads * ceil_div(size.V, block_columns(size));
  const int64_t segments =
      std::clamp<int64_t>(kBlocksAtOnce / (sequences * blocks), 1,
                          std::clamp<int64_t>(tokens / kFewestSegmentTokens, 1, kMostSegments));
  return std::min(tokens, round_up(ceil_div(tokens, segments), DeltaLayout::kPanel));
}

// Of a token, in bytes: what a pass and its gradients leave behind, and what a backward pass works with, records, states or their
// gradients, and corrections, as if these had room of their own everywhere.
struct TokenBytes {
  double results, records, states, corrections;

  double others() const { return 2 * states + corrections; }
  double workspace(bool keeps_records) const { return (keeps_records ? 0 : records) + others(); }
};
TokenBytes token_bytes(const GatedDeltaRuleSize& size) {
  const DeltaLayout layout = likely_layout(size);
  const int64_t number = layout.number_bytes, chunk = layout.chunk(),
                values = round_up(size.V, int64_t{DeltaLayout::kPanel});
  const auto of_value_heads = [&](int64_t bytes) {
    return static_cast<double>(size.value_heads * bytes);
  };
  return {static_cast<double>(2 * number * (size.heads * size.K + size.value_heads * size.V)),
          of_value_heads(layout.record_bytes() / chunk),
          of_value_heads(number * layout.keys * values / chunk), of_value_heads(number * values)};
}

// As many pieces as make the workspace small enough, to which records that are kept do not belong; `tokens`: that it has room for.
int64_t wanted_pieces(const GatedDeltaRuleSize& size, int64_t tokens, bool keeps_records,
                      double of_share = 1) {
  const TokenBytes bytes = token_bytes(size);
  const PieceLimits limits = piece_limits(size);
  const double workspace = bytes.workspace(keeps_records);
  const double room = static_cast<double>(tokens) * workspace;
  const double results = static_cast<double>(size.batch * size.length) * bytes.results;
  const auto wanted = static_cast<int64_t>(std::ceil(room / (of_share * limits.share * results)));
  const int64_t worth = std::llround(room / static_cast<double>(limits.small));
  return std::clamp<int64_t>(worth, 1, std::max<int64_t>(wanted, 1));
}

// Whether the records of all chunks have room, and perhaps the states of a piece, beside what else a piece of a backward pass needs.
bool have_room(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece,
               bool with_states = false) {
  const TokenBytes bytes = token_bytes(size);
  const auto all = static_cast<double>(size.batch * size.length),
             at_once = static_cast<double>(piece.batch * piece.tokens),
             values =
                 static_cast<double>(size.value_heads * (size.K + size.V) * size_of(size.dtype)) /
                 2;
  return all * (bytes.results + bytes.records) + at_once * bytes.others() +
             (with_states ? at_once * (bytes.states + bytes.corrections) : 0) <=
         kMostOfValues * all * values;
}

// Whether a piece with its workspace is as small as pieces should be, however few were wanted.
bool has_small_workspace(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece) {
  const TokenBytes bytes = token_bytes(size);
  const double workspace =
      static_cast<double>(piece.batch * piece.tokens) * bytes.workspace(piece.keeps_records);
  const double results = static_cast<double>(size.batch * size.length) * bytes.results;
  const PieceLimits limits = piece_limits(size);
  return workspace <= std::max(limits.share * results, 1.5 * static_cast<double>(limits.small));
}

// The most parts, of so many at most, whose blocks come in hardly more waves than those of the whole.
int64_t most_parts(int64_t count, int64_t blocks_each, int64_t most) {
  const auto waves = [&](int64_t parts) {
    return parts * ceil_div(ceil_div(count, parts) * blocks_each, kBlocksAtOnce);
  };
  while (most > 1 && 20 * waves(most) > 21 * waves(1)) --most;
  return std::max<int64_t>(most, 1);
}

}  // namespace

bool delta_heads_are_small(const GatedDeltaRuleSize& size) {
  return size.K <= DeltaLayout::kSequenceWidth && size.V <= DeltaLayout::kSequenceWidth;
}

int64_t delta_usual_length(const GatedDeltaRuleSize& size) {
  return ceil_div(size.batch * size.length, std::max<int64_t>(size.sequences, 1));
}

int64_t delta_segment_count(const GatedDeltaRuleSize& size, bool packed,
                            const GatedDeltaRulePiece& piece) {
  if (piece.segment == 0) return 1;
  if (packed) return piece.split ? size.length / piece.segment + size.sequences : 1;
  return std::max<int64_t>(ceil_div(size.length, piece.segment), 1);
}

GatedDeltaRulePiece gpu_piece(const GatedDeltaRuleSize& size, bool packed) {
  GatedDeltaRulePiece piece = {size.batch, size.length, size.length};
  if (delta_heads_are_small(size) || size.sequences * size.length * size.value_heads == 0 ||
      size.mode == GatedDeltaRuleMode::kRecurrent)
    return piece;
  const SplitCost cost = split_cost(size, kBlocksAtOnce, block_columns(size));
  constexpr int64_t kPanel = DeltaLayout::kPanel;
  // Of a scan, a batch item or all packed sequences, with 64 columns each: walks of wider ones are dealt out evenly.
  const int64_t blocks =
      (packed ? size.sequences : 1) * size.value_heads * ceil_div(size.V, kPanel);
  if (packed) {
    GatedDeltaRulePiece split = piece;
    split.segment = segment_tokens(size, size.sequences, delta_usual_length(size));
    split.split = true;
    if (cost.pays(usual_segments(size, split))) return split;
    // Numbers of chunks count one more for every sequence.
    const int64_t chunk = likely_layout(size).chunk();
    const int64_t room = (size.length / chunk + size.sequences) * chunk;
    // The longest sequence is the last to end, in every piece anew.
    const double enough = kPackedWaves * static_cast<double>(kBlocksAtOnce);
    const int64_t most =
        std::clamp<int64_t>(std::llround(static_cast<double>(blocks) / enough), 1,
                            std::min(size.heads, wanted_pieces(size, room, false, kPackedShare)));
    const int64_t heads = ceil_div(size.heads, most_parts(size.heads, blocks / size.heads, most));
    if (heads < size.heads) piece.heads = heads;
    return piece;
  }
  const int64_t chunks = ceil_div(size.length, kPanel);
  // Of some batch items, their sequences in so many pieces.
  const auto cut = [&](int64_t batch, int64_t cuts) {
    GatedDeltaRulePiece part = {batch, std::min(size.length, ceil_div(chunks, cuts) * kPanel)};
    part.segment = segment_tokens(size, batch, part.tokens);
    // So that a piece starts where a segment does.
    if (cuts > 1) part.tokens = round_up(part.tokens, part.segment);
    part.split = cost.pays(usual_segments(size, part));
    part.keeps_records = may_keep_records(size, packed, part) && have_room(size, part);
    part.keeps_states =
        part.keeps_records && part.tokens == size.length && likely_layout(size).has_groups() &&
        delta_recording_pays(size.sequences * size.value_heads, size.V, kBlocksAtOnce) &&
        have_room(size, part, /*with_states=*/true);
    return part;
  };
  // Along a sequence it is the gradients' kernel that needs blocks.
  const auto most_cuts = [&](int64_t batch, int64_t most) {
    return most_parts(chunks, batch * size.heads,
                      std::min(most, size.length / piece_limits(size).fewest_tokens));
  };
  const auto in_pieces = [&](int64_t most) {
    const int64_t batch =
        ceil_div(size.batch, most_parts(size.batch, blocks, std::min(size.batch, most)));
    return cut(batch, most_cuts(batch, ceil_div(most, ceil_div(size.batch, batch))));
  };
  const int64_t tokens = size.batch * size.length;
  piece = in_pieces(wanted_pieces(size, tokens, false));
  if (piece.split) return piece;
  const GatedDeltaRulePiece larger = in_pieces(wanted_pieces(size, tokens, true));
  if (larger.keeps_records && has_small_workspace(size, larger)) return larger;
  if (piece.keeps_records) return piece;
  // Fewer sequences at once, but whole ones, if their records can be kept then and blocks come in hardly more waves.
  if (const int64_t whole = piece.batch * piece.tokens / size.length;
      whole > 0 && whole < piece.batch) {
    const GatedDeltaRulePiece fewer = cut(whole, 1);
    const int64_t count = ceil_div(size.batch, whole);
    if (fewer.keeps_records && most_parts(size.batch, blocks, count) == count) return fewer;
  }
  // Shorter pieces of a long sequence, if its records can be kept then and cost more than the pieces do.
  const int64_t cuts = ceil_div(size.length, piece.tokens);
  const int64_t worth = std::min(cuts, chunks * size.value_heads / kRecordsOfPiece);
  for (int64_t more = 1; more <= worth && piece.batch == 1; ++more)
    if (const GatedDeltaRulePiece shorter = cut(1, most_cuts(1, cuts + more));
        shorter.keeps_records)
      return shorter;
  return piece;
}

int64_t gpu_kept_states(const GatedDeltaRuleSize& size, bool packed,
                        const GatedDeltaRulePiece& piece) {
  const int64_t segments = delta_segment_count(size, packed, piece);
  const int64_t heads = size.batch * size.value_heads, keys = delta_padded_keys(size.K);
  return gpu_kept_records(size, piece) + gpu_kept_chunk_states(size, piece) +
         (segments - 1) * heads * size.K * size.V +
         (piece.split ? std::max<int64_t>(segments - 2, 0) * heads * keys * keys : 0);
}

bool may_keep_records(const GatedDeltaRuleSize& size, bool packed,
                      const GatedDeltaRulePiece& piece) {
  const bool neighbours = piece.batch == 1 || piece.tokens == size.length;
  return !packed && !piece.split && neighbours && size.length >= DeltaLayout::kPanel &&
         delta_padded_keys(size.K) != DeltaLayout::kDeepKeys;
}

int64_t gpu_kept_records(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece) {
  if (!piece.keeps_records) return 0;
  const DeltaLayout layout = likely_layout(size);
  return size.batch * ceil_div(size.length, int64_t{layout.chunk()}) * size.value_heads *
         (layout.record_bytes() / int64_t{sizeof(float)});
}

int64_t gpu_kept_chunk_states(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece) {
  if (!piece.keeps_states) return 0;
  const DeltaLayout layout = likely_layout(size);
  const int64_t values = round_up(size.V, int64_t{DeltaLayout::kPanel});
  return std::min(piece.batch, size.batch) * ceil_div(size.length, int64_t{layout.chunk()}) *
         size.value_heads * values * (layout.keys + layout.chunk()) * layout.number_bytes /
         int64_t{sizeof(float)};
}

bool delta_recording_pays(int64_t heads, int64_t values, int64_t multiprocessors) {
  const auto waves = [&](int64_t width) {
    return static_cast<double>(ceil_div(heads * ceil_div(values, width), multiprocessors));
  };
  return kRecordingBlock * waves(2 * DeltaLayout::kPanel) < waves(DeltaLayout::kPanel);
}

bool delta_split_pays(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece,
                      int64_t multiprocessors, int64_t block_columns) {
  return split_cost(size, multiprocessors, block_columns).pays(usual_segments(size, piece));
}

GatedDeltaRulePiece delta_best_split(const GatedDeltaRuleSize& size, int64_t multiprocessors,
                                     int64_t block_columns, bool two_alone) {
  GatedDeltaRulePiece best = {size.batch, size.length, size.length};
  SplitCost cost = split_cost(size, multiprocessors, block_columns);
  cost.two_alone = two_alone;
  double least = kSplitGain * cost.in_turn(1);
  for (int64_t segments = 2; segments <= std::min(kMostSplitSegments, cost.chunks); ++segments) {
    const int64_t chunks = ceil_div(cost.chunks, segments);
    // So many chunks may make fewer segments.
    if (ceil_div(cost.chunks, chunks) != segments || cost.split(segments) >= least) continue;
    least = cost.split(segments);
    best.segment = chunks * DeltaLayout::kPanel;
    best.split = true;
  }
  return best;
}

}  // namespace linescan
