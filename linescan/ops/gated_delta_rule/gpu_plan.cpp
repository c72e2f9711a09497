#include "linescan/ops/gated_delta_rule/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"

namespace linescan {
namespace {

constexpr int64_t kAlignment = 128;  // of the parts of the workspace, bytes

// The recurrence is as fast below this many tokens a sequence.
constexpr int64_t kFewTokens = 8;

// Warps that only load, for a block that has a multiprocessor to itself.
constexpr int64_t kLoaders = 4;
constexpr int64_t kFillingKeys = 128;
// With so many keys two blocks of four warps share one, and fetch ahead by themselves.
constexpr int64_t kManyKeys = 256, kManyKeysWarps = 4;

// Of a warp group's 64 columns of V at least more than this should be used.
constexpr int64_t kFewValues = 32;

// Warps that walk whole sequences should be at least as many on a multiprocessor; of a backward pass so many
// blocks work there at once.
constexpr int64_t kWalkingWarps = 4;
constexpr int64_t kWalkingBlocks = 2;

// The workspace of a piece should be no more than this share of what a pass and its gradients leave behind; one of so many
// bytes is small enough. A segment has no fewer tokens; segments of a piece are no more.
constexpr double kWorkspaceShare = 0.5;
constexpr int64_t kSmallWorkspace = int64_t{64} << 20;
constexpr int64_t kFewestSegmentTokens = 640, kMostSegments = 8;
// Blocks that a GPU works on at once: that of the larger ones. Pieces should not add waves of them.
constexpr int64_t kBlocksAtOnce = 132;

// What a split costs, in times that a block's walk needs for a chunk: the start and end of a walk; a chunk of one without
// outputs; the chain, and each of its boundaries. A split that gains less than a tenth is not worth its rounding.
constexpr double kWalkChunks = 6, kAloneChunk = 0.75, kChainChunks = 3, kBoundaryChunks = 1;
constexpr double kSplitGain = 0.9;
constexpr int64_t kMostSplitSegments = 32;

// Widths of a scan's block, in warps of 16 columns, to choose from.
constexpr int64_t kWidths[] = {4, 2, 1};

// The warp group instructions of compute capability 9.0. Elsewhere, and in a build without code of sm_90a, the
// kernels that use them work too, with products of single warps, but have no advantage.
bool has_warp_group_products(const Gpu& gpu) { return gpu.major == 9 && gpu.minor == 0; }

int64_t sequence_block_bytes(Pass pass) {
  return DeltaLayout::kSequenceWarps * DeltaLayout::sequence_warp_bytes(pass == Pass::kBackward);
}

DeltaLaunch launch_of(int64_t items, int64_t threads, int64_t shared_bytes) {
  return {std::min(items, kLargestGrid), threads, shared_bytes};
}

void expect_shared(std::string_view kernel, const DeltaLaunch& launch,
                   const GatedDeltaRuleSize& size, const Gpu& gpu) {
  if (launch.shared_bytes > gpu.shared_per_block)
    throw_error<Unsupported>(
        "gated_delta_rule: K = {} in {} needs {} bytes of shared memory a block ({}), {} has {}; "
        "smaller K, a half type or the CPU would do",
        size.K, name_of(size.dtype), launch.shared_bytes, kernel, gpu.name, gpu.shared_per_block);
}

// Parts of the workspace, one behind the other.
struct Parts {
  int64_t end = 0;

  int64_t reserve(int64_t bytes) {
    const int64_t at = end;
    end += round_up(bytes, kAlignment);
    return at;
  }
};

// Scans by two warp groups that share the keys, gradients by warp groups for half of the keys after the other.
bool shares_keys(const GatedDeltaRuleSize& size, const Gpu& gpu) {
  constexpr DeltaLayout kLayout{2, DeltaLayout::kPairKeys, true};
  return delta_padded_keys(size.K) == DeltaLayout::kPairKeys && size_of(size.dtype) == 2 &&
         size.V > kFewValues && size.value_heads > 0 && has_warp_group_products(gpu) &&
         kLayout.pair_scan_bytes(true) <= gpu.shared_per_block &&
         kLayout.group_gradients_bytes() <= gpu.shared_per_block;
}

bool is_small(const GatedDeltaRuleSize& size) {
  return size.K <= DeltaLayout::kSequenceWidth && size.V <= DeltaLayout::kSequenceWidth;
}

// Tokens of a sequence; of packed ones, whose lengths nobody knows here, the average.
int64_t usual_length(const GatedDeltaRuleSize& size) {
  return ceil_div(size.batch * size.length, std::max<int64_t>(size.sequences, 1));
}

// Segments of a usual sequence.
int64_t usual_segments(const GatedDeltaRuleSize& size, const GatedDeltaRulePiece& piece) {
  GatedDeltaRuleSize usual = size;
  usual.length = usual_length(size);
  return delta_segment_count(usual, /*packed=*/false, piece);
}

// Chunks that a forward pass goes through one after the other, when `heads` sequences and value heads of so many chunks
// are cut into segments and `at_once` blocks work at once.
struct SplitCost {
  int64_t heads, chunks, value_parts, key_parts, at_once;

  int64_t waves(int64_t blocks) const { return ceil_div(blocks, at_once); }
  double in_turn(int64_t segments) const {
    return static_cast<double>(waves(heads * value_parts)) *
           (static_cast<double>(chunks) + kWalkChunks * static_cast<double>(segments));
  }
  double split(int64_t segments) const {
    if (segments == 1) return in_turn(1);
    const int64_t alone =
        waves(heads * (value_parts * (segments - 1) + key_parts * (segments - 2)));
    const int64_t together = waves(heads * value_parts * segments);
    const auto each = static_cast<double>(ceil_div(chunks, segments));
    return static_cast<double>(alone) * (kAloneChunk * each + kWalkChunks) +
           static_cast<double>(together) * (each + kWalkChunks) + kChainChunks +
           kBoundaryChunks * static_cast<double>(segments);
  }
  bool pays(int64_t segments) const {
    return segments > 1 && split(segments) < kSplitGain * in_turn(segments);
  }
};
// By blocks of 64 columns.
SplitCost split_cost(const GatedDeltaRuleSize& size, int64_t multiprocessors) {
  constexpr int64_t kPanel = DeltaLayout::kPanel;
  return {size.sequences * size.value_heads, ceil_div(usual_length(size), kPanel),
          ceil_div(size.V, kPanel), ceil_div(delta_padded_keys(size.K), kPanel), multiprocessors};
}

// How a forward pass that keeps nothing is split.
GatedDeltaRulePiece best_split(const GatedDeltaRuleSize& size, const Gpu& gpu) {
  GatedDeltaRulePiece best = {size.batch, size.length, size.length};
  const SplitCost cost = split_cost(size, gpu.multiprocessors);
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

// Many sequences with small heads. Gradients of q and k are not added up between warps.
bool walks_whole_sequences(const GatedDeltaRuleSize& size, Pass pass, const Gpu& gpu) {
  return size_of(size.dtype) == 2 && is_small(size) &&
         size.sequences * size.value_heads >= kWalkingWarps * gpu.multiprocessors &&
         (pass == Pass::kForward || size.heads == size.value_heads) &&
         sequence_block_bytes(pass) <= gpu.shared_per_block;
}

void plan_whole_sequences(GatedDeltaRuleGpuPlan& plan, const GatedDeltaRuleSize& size, bool packed,
                          const Gpu& gpu, Parts& parts) {
  constexpr int64_t kWarps = DeltaLayout::kSequenceWarps;
  const int64_t heads = size.sequences * size.value_heads;
  plan.whole_sequences = true;
  plan.chunk = DeltaLayout::kSequenceTokens;
  plan.scan = launch_of(ceil_div(heads, kWarps), 32 * kWarps, sequence_block_bytes(plan.pass));
  if (plan.pass == Pass::kForward) return;
  const int64_t blocks = std::clamp<int64_t>(gpu.shared_per_multiprocessor / plan.scan.shared_bytes,
                                             1, kWalkingBlocks);
  plan.scan.grid = std::min(plan.scan.grid, blocks * gpu.multiprocessors);
  if (!packed) plan.slot_chunks = ceil_div(size.length, plan.chunk);
  const int64_t places = packed ? (size.length / plan.chunk + size.sequences) * size.value_heads
                                : plan.scan.grid * kWarps * plan.slot_chunks;
  plan.states_at = parts.reserve(places * DeltaLayout::kSequenceKeptBytes);
  plan.parameter_sums_at = parts.reserve(2 * heads * 4);
}

// All at once, a problem or a piece of it, whose sequences, or segments of them, are so many walks side by side.
GatedDeltaRuleGpuPlan plan_piece(const GatedDeltaRuleSize& size, bool packed, Pass pass,
                                 const Gpu& gpu, int64_t walks) {
  GatedDeltaRuleGpuPlan plan;
  plan.pass = pass;
  const int64_t number = size_of(size.dtype), sequences = size.sequences;
  const int64_t padded_keys = delta_padded_keys(size.K);
  plan.key_pair = shares_keys(size, gpu);
  const DeltaLayout layout{static_cast<int>(number), static_cast<int>(padded_keys), plan.key_pair};
  plan.padded_keys = padded_keys;
  plan.chunk = layout.chunk();

  plan.mode = pass == Pass::kBackward ? GatedDeltaRuleMode::kChunk : size.mode;
  if (plan.mode == GatedDeltaRuleMode::kAuto)
    plan.mode = usual_length(size) < kFewTokens ? GatedDeltaRuleMode::kRecurrent
                                                : GatedDeltaRuleMode::kChunk;

  const int64_t tokens = size.batch * size.length, rows = tokens * size.value_heads;
  const int64_t states = sequences * size.value_heads * size.K * size.V * 4;
  const int64_t inputs =
      number * (2 * tokens * size.heads * size.K + rows * size.V) + (4 + number) * rows;
  const int64_t times = pass == Pass::kForward ? 1 : 2;
  plan.bytes = times * (inputs + states) + number * rows * size.V;
  plan.multiplications = (pass == Pass::kForward ? 3 : 8) * rows * size.K * size.V;

  const int64_t heads = walks * size.value_heads;
  Parts parts{packed ? round_up((sequences + 1) * 8, kAlignment) : 0};
  if (plan.mode == GatedDeltaRuleMode::kRecurrent) {
    plan.chunk = 1;
    plan.key_warps = layout.recurrence_warps();
    plan.column_warps = 1;
    plan.column_parts = ceil_div(size.V, 32);
    plan.scan = launch_of(heads * plan.column_parts, 32 * plan.key_warps, 0);
    plan.workspace_bytes = parts.end;
    return plan;
  }

  if (walks_whole_sequences(size, pass, gpu)) {
    plan_whole_sequences(plan, size, packed, gpu, parts);
    plan.workspace_bytes = parts.end;
    return plan;
  }

  if (sequences > 0)
    plan.chunks = packed ? size.length / plan.chunk + sequences
                         : sequences * ceil_div(size.length, plan.chunk);
  const int64_t units = plan.chunks * size.heads, value_units = plan.chunks * size.value_heads;
  plan.records = launch_of(units, 2 * plan.chunk, layout.records_bytes());
  plan.key_warps = layout.key_warps();
  plan.warp_groups = !plan.key_pair && layout.has_groups() && size.V > kFewValues &&
                     size.value_heads > 0 && has_warp_group_products(gpu) &&
                     layout.group_scan_bytes(2, true, true) <= gpu.shared_per_block &&
                     layout.group_gradients_bytes() <= gpu.shared_per_block;
  plan.padded_values =
      round_up(size.V, plan.warp_groups || plan.key_pair ? int64_t{DeltaLayout::kPanel} : 16);
  const int64_t values = plan.padded_values;
  const auto scan = [&](bool outputs, int64_t stages) {
    const int64_t threads = plan.warp_groups || plan.key_pair
                                ? DeltaLayout::kGroupScanThreads
                                : 32 * (plan.column_warps * plan.key_warps + plan.loader_warps);
    const int columns = static_cast<int>(plan.column_warps), count = static_cast<int>(stages);
    return launch_of(heads * plan.column_parts, threads,
                     plan.key_pair ? layout.pair_scan_bytes(outputs)
                     : plan.warp_groups
                         ? layout.group_scan_bytes(count, outputs, pass == Pass::kBackward)
                         : layout.scan_bytes(columns, count, outputs));
  };
  if (plan.key_pair) {
    plan.column_warps = 4;
    plan.column_parts = ceil_div(values, 64);
    plan.stages = DeltaLayout::kPairStages;
  } else if (plan.warp_groups) {
    plan.column_warps = plan.loader_warps = 4;
    plan.column_parts = ceil_div(values, 64);
    plan.stages = 2;
    while (plan.stages < DeltaLayout::kMostGroupScanStages &&
           scan(true, plan.stages + 1).shared_bytes <= gpu.shared_per_block)
      ++plan.stages;
  } else {
    const int64_t most_warps = padded_keys == kManyKeys ? kManyKeysWarps : kDeltaScanWarps;
    // Where heads are few, blocks are narrow so that every multiprocessor has one; nine tenths will do.
    for (const int64_t width : kWidths) {
      if (width * plan.key_warps > most_warps) continue;
      plan.column_warps = width;
      plan.column_parts = ceil_div(values, 16 * width);
      if (width <= values / 16 && 10 * heads * plan.column_parts >= 9 * gpu.multiprocessors) break;
    }
    const int64_t compute_warps = plan.key_warps * plan.column_warps;
    // A block has a multiprocessor to itself where there are no more, or where its registers fill it.
    const bool alone =
        heads * plan.column_parts <= gpu.multiprocessors || padded_keys == kFillingKeys;
    plan.loader_warps = alone && compute_warps <= kLoaders ? kLoaders : 0;
    // One stage where many blocks share a multiprocessor, so that one computes while another fetches, or
    // where two do not fit.
    const bool ahead = alone || (padded_keys == kManyKeys &&
                                 2 * scan(true, 2).shared_bytes <= gpu.shared_per_multiprocessor);
    plan.stages = ahead && scan(true, 2).shared_bytes <= gpu.shared_per_block ? 2 : 1;
  }
  plan.scan = scan(pass == Pass::kForward, plan.stages);
  plan.records_at = parts.reserve(value_units * layout.record_bytes());
  expect_shared("records", plan.records, size, gpu);
  expect_shared("scan", plan.scan, size, gpu);
  if (pass == Pass::kBackward) {
    plan.reverse_scan = scan(true, plan.stages);
    if (plan.warp_groups || plan.key_pair) {
      plan.gradient_stages = DeltaLayout::kGroupStages;
      // Where value heads or halves of the keys meet, a block has a slot, and blocks are as few as find a
      // multiprocessor.
      if (plan.key_pair || size.value_heads > size.heads)
        plan.gradient_slot_floats = layout.group_slot_floats(size.value_heads / size.heads);
      plan.gradients =
          launch_of(plan.gradient_slot_floats > 0 ? std::min(units, gpu.multiprocessors) : units,
                    DeltaLayout::kGroupThreads, layout.group_gradients_bytes());
    } else {
      plan.gradient_stages = layout.gradients_bytes(2) <= gpu.shared_per_block ? 2 : 1;
      plan.gradients = launch_of(units, layout.gradient_threads(),
                                 layout.gradients_bytes(static_cast<int>(plan.gradient_stages)));
    }
    expect_shared("reverse scan", plan.reverse_scan, size, gpu);
    expect_shared("gradients", plan.gradients, size, gpu);
    plan.states_at = parts.reserve(value_units * values * padded_keys * number);
    plan.state_gradients_at = parts.reserve(value_units * values * padded_keys * number);
    plan.corrections_at = parts.reserve(value_units * values * plan.chunk * number);
    plan.correction_gradients_at = parts.reserve(value_units * values * plan.chunk * number);
    plan.parameter_sums_at = parts.reserve(2 * value_units * 4);
    plan.gradient_slots_at = parts.reserve(4 * plan.gradients.grid * plan.gradient_slot_floats);
  }
  plan.workspace_bytes = parts.end;
  return plan;
}

}  // namespace

int64_t delta_segment_count(const GatedDeltaRuleSize& size, bool packed,
                            const GatedDeltaRulePiece& piece) {
  if (piece.segment == 0) return 1;
  if (packed) return piece.split ? size.length / piece.segment + size.sequences : 1;
  return std::max<int64_t>(ceil_div(size.length, piece.segment), 1);
}

GatedDeltaRulePiece gpu_piece(const GatedDeltaRuleSize& size, bool packed) {
  GatedDeltaRulePiece piece = {size.batch, size.length, size.length};
  if (is_small(size) || size.sequences * size.length * size.value_heads == 0 ||
      size.mode == GatedDeltaRuleMode::kRecurrent)
    return piece;
  // As many segments as a GPU has blocks for, and as are worth a walk.
  const auto segment_of = [&](int64_t sequences, int64_t tokens) {
    const int64_t blocks = size.value_heads * ceil_div(size.V, DeltaLayout::kPanel);
    const int64_t segments =
        std::clamp<int64_t>(kBlocksAtOnce / (sequences * blocks), 1,
                            std::clamp<int64_t>(tokens / kFewestSegmentTokens, 1, kMostSegments));
    return std::min(tokens, round_up(ceil_div(tokens, segments), DeltaLayout::kPanel));
  };
  const SplitCost cost = split_cost(size, kBlocksAtOnce);
  if (packed) {
    GatedDeltaRulePiece split = piece;
    split.segment = segment_of(size.sequences, usual_length(size));
    split.split = true;
    return cost.pays(usual_segments(size, split)) ? split : piece;
  }
  // Bytes of a token, with the chunks and the blocks of warp groups where there may be such.
  constexpr int64_t kPanel = DeltaLayout::kPanel;
  const int64_t number = size_of(size.dtype), keys = delta_padded_keys(size.K);
  const DeltaLayout layout{static_cast<int>(number), static_cast<int>(keys),
                           number == 2 && keys == DeltaLayout::kPairKeys};
  const int64_t chunk = layout.chunk(), values = round_up(size.V, kPanel);
  const int64_t results = 2 * number * (size.heads * size.K + size.value_heads * size.V);
  const int64_t workspace =
      size.value_heads *
      (2 * number * (keys * values / chunk + values + chunk) + 4 * kDeltaRecordRows);
  const auto wanted = static_cast<int64_t>(
      std::ceil(static_cast<double>(workspace) / (kWorkspaceShare * static_cast<double>(results))));
  const int64_t most = std::clamp<int64_t>(size.batch * size.length * workspace / kSmallWorkspace,
                                           1, std::max<int64_t>(wanted, 1));
  // The most parts, of so many at most, whose blocks come in hardly more waves than those of the whole.
  const auto most_parts = [](int64_t count, int64_t blocks_each, int64_t most) {
    const auto waves = [&](int64_t parts) {
      return parts * ceil_div(ceil_div(count, parts) * blocks_each, kBlocksAtOnce);
    };
    while (most > 1 && 20 * waves(most) > 21 * waves(1)) --most;
    return std::max<int64_t>(most, 1);
  };
  const int64_t blocks = size.value_heads * values / kPanel;  // of a scan, a batch item
  piece.batch = ceil_div(size.batch, most_parts(size.batch, blocks, std::min(size.batch, most)));
  const int64_t parts = ceil_div(size.batch, piece.batch);
  // Along a sequence it is the gradients' kernel that needs blocks.
  const int64_t chunks = ceil_div(size.length, kPanel);
  const int64_t cuts =
      most_parts(chunks, piece.batch * size.heads,
                 std::min(ceil_div(most, parts), size.length / kFewestSegmentTokens));
  piece.tokens = std::min(size.length, ceil_div(chunks, cuts) * kPanel);
  piece.segment = segment_of(piece.batch, piece.tokens);
  // So that a piece starts where a segment does.
  if (cuts > 1) piece.tokens = round_up(piece.tokens, piece.segment);
  piece.split = cost.pays(usual_segments(size, piece));
  return piece;
}

int64_t gpu_kept_states(const GatedDeltaRuleSize& size, bool packed,
                        const GatedDeltaRulePiece& piece) {
  const int64_t segments = delta_segment_count(size, packed, piece);
  const int64_t heads = size.batch * size.value_heads, keys = delta_padded_keys(size.K);
  return (segments - 1) * heads * size.K * size.V +
         (piece.split ? std::max<int64_t>(segments - 2, 0) * heads * keys * keys : 0);
}

GatedDeltaRuleGpuPlan plan(const GatedDeltaRuleSize& size, bool packed, Pass pass, const Gpu& gpu) {
  GatedDeltaRulePiece piece = gpu_piece(size, packed);
  if (size.kept_states)
    piece.split =
        piece.split && split_cost(size, gpu.multiprocessors).pays(usual_segments(size, piece));
  else if (pass == Pass::kForward && size.mode != GatedDeltaRuleMode::kRecurrent)
    piece = best_split(size, gpu);
  return plan(size, packed, pass, gpu, piece);
}

GatedDeltaRuleGpuPlan plan(const GatedDeltaRuleSize& size, bool packed, Pass pass, const Gpu& gpu,
                           GatedDeltaRulePiece piece) {
  const bool forward = pass == Pass::kForward;
  if (packed && size.sequences == 0) piece.split = false;
  const bool has_segments = size.kept_states || (forward && piece.split);
  if (!has_segments || (packed && !piece.split)) piece = {piece.batch, size.length, size.length};
  GatedDeltaRuleSize part = size;  // what is done at once
  if (!forward && !packed) {
    part.batch = part.sequences = piece.batch;
    part.length = piece.tokens;
  }
  const int64_t segments = delta_segment_count(part, packed, piece);
  const int64_t items = packed && piece.split ? 1 : part.sequences;  // that have so many segments
  GatedDeltaRuleGpuPlan plan =
      plan_piece(part, packed, pass, gpu, items * (piece.split ? segments : 1));
  plan.piece = piece;
  plan.kept_step = size.batch * size.value_heads * size.K * size.V;
  plan.transition_step = size.batch * size.value_heads * plan.padded_keys * plan.padded_keys;
  if (plan.whole_sequences || plan.mode == GatedDeltaRuleMode::kRecurrent) {
    plan.piece.split = false;
    return plan;
  }
  Parts parts{plan.workspace_bytes};
  const int64_t heads = part.sequences * size.value_heads;
  if (piece.split && segments > 1) {
    if (forward && segments > 2)
      plan.unit_parts = ceil_div(plan.padded_keys, 16 * plan.column_warps);
    const DeltaLaunch& scan = forward ? plan.scan : plan.reverse_scan;
    plan.ends =
        launch_of(items * size.value_heads * (segments - 1) * (plan.column_parts + plan.unit_parts),
                  scan.block, scan.shared_bytes);
    plan.chain = launch_of(heads * ceil_div(size.V, int64_t{DeltaLayout::kChainColumns}),
                           DeltaLayout::kChainThreads,
                           DeltaLayout{4, static_cast<int>(plan.padded_keys)}.chain_bytes());
    expect_shared("chain", plan.chain, size, gpu);
    if (!forward || !size.kept_states)
      plan.boundaries_at =
          parts.reserve(4 * (segments - 1) * part.batch * size.value_heads * size.K * size.V);
    if (forward) plan.transitions_at = parts.reserve(4 * (segments - 2) * plan.transition_step);
  }
  if (!forward && !piece.split) plan.scan.grid = std::min(plan.scan.grid * segments, kLargestGrid);
  const auto parts_of = [](int64_t all, int64_t part) {
    return ceil_div(all, std::max<int64_t>(part, 1));
  };
  if (!forward)
    plan.pieces = std::max<int64_t>(
        parts_of(size.batch, piece.batch) * parts_of(size.length, piece.tokens), 1);
  if (plan.pieces > 1) {
    const GatedDeltaRuleGpuPlan whole = plan_piece(size, packed, pass, gpu, size.sequences);
    plan.bytes = whole.bytes;
    plan.multiplications = whole.multiplications;
    // Sums of all pieces, one behind the other; the gradient of the state on its way from piece to piece.
    plan.parameter_sums_at = parts.reserve(plan.pieces * 2 * plan.chunks * size.value_heads * 4);
    plan.carry_at = parts.reserve((piece.split ? 2 : 1) * heads * size.K * size.V * 4);
  }
  plan.workspace_bytes = parts.end;
  return plan;
}

std::string to_string(const GatedDeltaRuleGpuPlan& plan) {
  std::string text = fmt::format("gated_delta_rule {} on a GPU\n  mode            {}\n",
                                 name_of(plan.pass), name_of(plan.mode));
  const auto add = [&](std::string_view name, const DeltaLaunch& launch) {
    text += fmt::format("  {:<15} {} blocks of {} threads, {} bytes of shared memory each\n", name,
                        launch.grid, launch.block, launch.shared_bytes);
  };
  if (plan.mode == GatedDeltaRuleMode::kRecurrent) {
    text +=
        fmt::format("  block           32 columns of V, K shared by {} warps\n", plan.key_warps);
    add("recurrence", plan.scan);
  } else if (plan.whole_sequences) {
    text +=
        fmt::format("  chunk           {} tokens, a warp a sequence and value head\n", plan.chunk);
    add("sequences", plan.scan);
  } else {
    text += fmt::format(
        "  chunk           {} tokens, K padded to {}\n"
        "  products        {}\n"
        "  scan            {} columns of V a block, {} warps along K, {} that load, {} stages\n",
        plan.chunk, plan.padded_keys,
        plan.warp_groups || plan.key_pair ? "of warp groups" : "of warps", 16 * plan.column_warps,
        plan.key_warps, plan.loader_warps, plan.stages);
    add("records", plan.records);
    if (plan.pass == Pass::kForward && plan.piece.split) {
      add("segments alone", plan.ends);
      add("chain", plan.chain);
    }
    add("scan", plan.scan);
    if (plan.pass == Pass::kBackward) {
      if (plan.piece.split) {
        add("segments alone", plan.ends);
        add("chain", plan.chain);
      }
      add("reverse scan", plan.reverse_scan);
      add("gradients", plan.gradients);
    }
  }
  if (plan.pieces > 1)
    text += fmt::format("  pieces          {}, one at a time, of {} batch items and {} tokens\n",
                        plan.pieces, plan.piece.batch, plan.piece.tokens);
  if (plan.piece.split)
    text +=
        fmt::format("  segments        of {} tokens, walked side by side\n", plan.piece.segment);
  else if (plan.pass == Pass::kBackward && plan.piece.segment < plan.piece.tokens)
    text += fmt::format("  segments        of {} tokens, whose states are found side by side\n",
                        plan.piece.segment);
  return text + fmt::format(
                    "  workspace       {} bytes\n"
                    "  bytes           {}\n"
                    "  multiply-adds   {}   with states",
                    plan.workspace_bytes, plan.bytes, plan.multiplications);
}

}  // namespace linescan
