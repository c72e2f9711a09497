#include "linescan/ops/gated_delta_rule/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/device/gpu.h"
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

// A block of a scan that makes records prepares one walk's first chunks while another's last ones are under way. Equal walks of up to
// so many chunks are dealt out ahead, as many to each block as a multiprocessor gets; longer ones, which by count would gain less than
// 3 %, have a block each. Packed walks may differ: blocks are so many times what works at once, if walks are enough, and
// have no more of them than these.
constexpr int64_t kDealtChunks = 64, kRecordingWaves = 8, kRecordingWalks = 16;

// Sequences in whose backward pass a second stream is used, for its events cost some microseconds, have no fewer chunks.
constexpr int64_t kFewestSideBySide = 16;

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

// With many keys: scans of 128 columns a block, gradients for half of the keys after the other.
bool has_deep_groups(const GatedDeltaRuleSize& size, const Gpu& gpu) {
  constexpr DeltaLayout kLayout{2, DeltaLayout::kDeepKeys, true};
  return delta_padded_keys(size.K) == DeltaLayout::kDeepKeys && size_of(size.dtype) == 2 &&
         size.V > kFewValues && size.value_heads > 0 && has_warp_group_products(gpu) &&
         kLayout.deep_scan_bytes(true) <= gpu.shared_per_block &&
         kLayout.group_gradients_bytes() <= gpu.shared_per_block;
}

// Many sequences with small heads. Gradients of q and k are not added up between warps.
bool walks_whole_sequences(const GatedDeltaRuleSize& size, Pass pass, const Gpu& gpu) {
  return size_of(size.dtype) == 2 && delta_heads_are_small(size) &&
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

void plan_recurrence(GatedDeltaRuleGpuPlan& plan, const GatedDeltaRuleSize& size,
                     const DeltaLayout& layout, int64_t heads) {
  plan.chunk = 1;
  plan.key_warps = layout.recurrence_warps();
  plan.column_warps = 1;
  plan.column_parts = ceil_div(size.V, 32);
  plan.scan = launch_of(heads * plan.column_parts, 32 * plan.key_warps, 0);
}

// Whether equal walks, so many chunks long, are dealt out evenly among fewer blocks: a walk that two of them share is handed over, which
// costs some chunks.
bool pays_to_share(int64_t walks, int64_t chunks, int64_t at_once) {
  // The state's 128 KiB out and in again, and the start of one more walk, estimated; to gain less is not worth it.
  constexpr double kHandoverChunks = 2, kGain = 0.95;
  if (walks <= at_once || at_once == 0) return false;
  const auto waves = static_cast<double>(ceil_div(walks, at_once) * chunks);
  const double shared =
      static_cast<double>(walks * chunks) / static_cast<double>(at_once) + kHandoverChunks;
  return shared < kGain * waves;
}

// A scan's blocks, for so many walks of a value head.
struct ScanBlocks {
  const GatedDeltaRuleGpuPlan& plan;
  const DeltaLayout& layout;
  int64_t heads;

  DeltaLaunch launch(bool outputs, int64_t stages) const {
    const int columns = static_cast<int>(plan.column_warps), count = static_cast<int>(stages);
    const int64_t threads = plan.deep_groups     ? DeltaLayout::kDeepScanThreads
                            : plan.makes_records ? DeltaLayout::kRecordingThreads
                            : plan.warp_groups && outputs && plan.pass == Pass::kForward
                                ? DeltaLayout::kGroupOutputThreads
                            : plan.warp_groups
                                ? DeltaLayout::kGroupScanThreads
                                : 32 * (plan.column_warps * plan.key_warps + plan.loader_warps);
    const int64_t bytes = plan.deep_groups     ? layout.deep_scan_bytes(outputs)
                          : plan.makes_records ? layout.recording_scan_bytes()
                          : plan.warp_groups   ? layout.group_scan_bytes(count, outputs)
                                               : layout.scan_bytes(columns, count, outputs);
    return launch_of(heads * plan.column_parts, threads, bytes);
  }
};

// Who carries which columns of the state, and how far ahead a block fetches.
void choose_scan_block(GatedDeltaRuleGpuPlan& plan, const DeltaLayout& layout, int64_t heads,
                       bool split, const Gpu& gpu) {
  const ScanBlocks scan{plan, layout, heads};
  const int64_t values = plan.padded_values;
  if (plan.deep_groups) {
    plan.key_warps = 1;
    plan.column_warps = 8;
    plan.loader_warps = 2;
    plan.column_parts = ceil_div(values, 16 * plan.column_warps);
    plan.stages = 2;
    return;
  }
  if (plan.warp_groups) {
    plan.makes_records = plan.pass == Pass::kForward && !split &&
                         layout.recording_scan_bytes() <= gpu.shared_per_block &&
                         delta_recording_pays(heads, values, gpu.multiprocessors);
    plan.column_warps = plan.makes_records ? 8 : 4;
    plan.loader_warps = 4;
    plan.column_parts = ceil_div(values, 16 * plan.column_warps);
    plan.stages = plan.makes_records ? DeltaLayout::kRecordingStages : 2;
    while (plan.stages < DeltaLayout::kMostGroupScanStages &&
           scan.launch(true, plan.stages + 1).shared_bytes <= gpu.shared_per_block)
      ++plan.stages;
    return;
  }
  const int64_t most_warps = plan.padded_keys == kManyKeys ? kManyKeysWarps : kDeltaScanWarps;
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
      heads * plan.column_parts <= gpu.multiprocessors || plan.padded_keys == kFillingKeys;
  plan.loader_warps = alone && compute_warps <= kLoaders ? kLoaders : 0;
  // One stage where many blocks share a multiprocessor, so that one computes while another fetches, or
  // where two do not fit.
  const bool ahead =
      alone || (plan.padded_keys == kManyKeys &&
                2 * scan.launch(true, 2).shared_bytes <= gpu.shared_per_multiprocessor);
  plan.stages = ahead && scan.launch(true, 2).shared_bytes <= gpu.shared_per_block ? 2 : 1;
}

void plan_gradients(GatedDeltaRuleGpuPlan& plan, const GatedDeltaRuleSize& size,
                    const DeltaLayout& layout, const Gpu& gpu) {
  const int64_t units = plan.chunks * size.heads;
  if (!plan.warp_groups && !plan.deep_groups) {
    plan.gradient_stages = layout.gradients_bytes(2) <= gpu.shared_per_block ? 2 : 1;
    plan.gradients = launch_of(units, layout.gradient_threads(),
                               layout.gradients_bytes(static_cast<int>(plan.gradient_stages)));
    return;
  }
  plan.gradient_stages = DeltaLayout::kGroupStages;
  // Blocks are as few as find a multiprocessor: they load ahead. Where keys come in halves, each has a slot.
  if (plan.deep_groups)
    plan.gradient_slot_floats = layout.group_slot_floats(size.value_heads / size.heads);
  plan.gradients = launch_of(
      std::min(units, gpu.multiprocessors),
      DeltaLayout::kGroupThreads + DeltaLayout::kGroupMovers + DeltaLayout::kGroupFinishers,
      layout.group_gradients_bytes());
}

// Blocks that share the value heads of a chunk and head of q, of which there are so many: as many as find a multiprocessor at once,
// none without a value head. Each makes the products of q and k anew.
int64_t choose_record_parts(int64_t units, const GatedDeltaRuleSize& size,
                            const DeltaLayout& layout, const Gpu& gpu) {
  if (units == 0 || size.value_heads == 0) return 1;
  const int64_t group = size.value_heads / size.heads;
  const int64_t blocks =
      std::min<int64_t>(layout.record_blocks(),
                        blocks_on_multiprocessor(gpu, 2 * layout.chunk(), layout.records_bytes()));
  const int64_t parts = std::clamp<int64_t>(gpu.multiprocessors * blocks / units, 1, group);
  return ceil_div(group, ceil_div(group, parts));
}

// Half types, 64 and 128 keys.
bool has_warp_groups(const GatedDeltaRuleSize& size, const DeltaLayout& layout, const Gpu& gpu) {
  return !layout.deep && layout.has_groups() && size.V > kFewValues && size.value_heads > 0 &&
         has_warp_group_products(gpu) && layout.group_scan_bytes(2, true) <= gpu.shared_per_block &&
         layout.group_gradients_bytes() <= gpu.shared_per_block;
}

// Chunk by chunk. states_are_kept: backward, those of all chunks.
void plan_chunks(GatedDeltaRuleGpuPlan& plan, const GatedDeltaRuleSize& size, bool packed,
                 const DeltaLayout& layout, int64_t heads, const GatedDeltaRulePiece& piece,
                 bool states_are_kept, const Gpu& gpu, Parts& parts) {
  if (size.sequences > 0)
    plan.chunks = packed ? size.length / plan.chunk + size.sequences
                         : size.sequences * ceil_div(size.length, plan.chunk);
  const int64_t value_units = plan.chunks * size.value_heads;
  plan.record_parts = choose_record_parts(plan.chunks * size.heads, size, layout, gpu);
  plan.records = launch_of(plan.chunks * size.heads * plan.record_parts, 2 * plan.chunk,
                           layout.records_bytes());
  plan.key_warps = layout.key_warps();
  plan.warp_groups = has_warp_groups(size, layout, gpu);
  plan.padded_values =
      round_up(size.V, plan.warp_groups || plan.deep_groups ? int64_t{DeltaLayout::kPanel} : 16);
  choose_scan_block(plan, layout, heads, piece.split, gpu);
  const ScanBlocks scan{plan, layout, heads};
  plan.scan = scan.launch(plan.pass == Pass::kForward, plan.stages);
  if (plan.makes_records) {
    const int64_t walks = heads * plan.column_parts, at_once = gpu.multiprocessors;
    const bool dealt = !packed && ceil_div(size.length, plan.chunk) <= kDealtChunks;
    const int64_t each =
        packed ? std::clamp<int64_t>(walks / (kRecordingWaves * at_once), 1, kRecordingWalks) : 1;
    plan.scan.grid = std::min(plan.scan.grid, dealt ? at_once : ceil_div(walks, each));
  }
  plan.record_bytes = layout.record_bytes();
  if (plan.makes_records)
    plan.records = {};
  else if (!piece.keeps_records)
    plan.records_at = parts.reserve(value_units * plan.record_bytes);
  expect_shared("records", plan.records, size, gpu);
  expect_shared("scan", plan.scan, size, gpu);
  const int64_t number = layout.number_bytes, values = plan.padded_values;
  plan.correction_step = values * plan.chunk;
  if (plan.pass == Pass::kForward) return;
  plan.reverse_scan = scan.launch(true, plan.stages);
  plan_gradients(plan, size, layout, gpu);
  expect_shared("reverse scan", plan.reverse_scan, size, gpu);
  expect_shared("gradients", plan.gradients, size, gpu);
  if (!states_are_kept)
    plan.states_at = parts.reserve(value_units * values * plan.padded_keys * number);
  // What the forward pass keeps stays as it is: there may be another backward pass.
  plan.corrections_take_place = !piece.keeps_records && values <= plan.chunk;
  if (plan.corrections_take_place) {
    plan.corrections_at = plan.records_at + plan.chunk * plan.chunk * number;
    plan.correction_step = plan.record_bytes / number;
  } else if (!states_are_kept) {
    plan.corrections_at = parts.reserve(value_units * values * plan.chunk * number);
  }
  plan.state_gradients_at = parts.reserve(value_units * values * plan.padded_keys * number);
  plan.parameter_sums_at = parts.reserve(2 * value_units * 4);
  plan.gradient_slots_at = parts.reserve(4 * plan.gradients.grid * plan.gradient_slot_floats);
}

// All at once, a problem or a piece of it, whose sequences, or segments of them, are so many walks side by side.
GatedDeltaRuleGpuPlan plan_piece(const GatedDeltaRuleSize& size, bool packed, Pass pass,
                                 const Gpu& gpu, int64_t walks, const GatedDeltaRulePiece& piece,
                                 bool states_are_kept = false) {
  GatedDeltaRuleGpuPlan plan;
  plan.pass = pass;
  const int64_t number = size_of(size.dtype), sequences = size.sequences;
  plan.padded_keys = delta_padded_keys(size.K);
  plan.deep_groups = has_deep_groups(size, gpu);
  const DeltaLayout layout{static_cast<int>(number), static_cast<int>(plan.padded_keys),
                           plan.deep_groups};
  plan.chunk = layout.chunk();

  plan.mode = pass == Pass::kBackward ? GatedDeltaRuleMode::kChunk : size.mode;
  if (plan.mode == GatedDeltaRuleMode::kAuto)
    plan.mode = delta_usual_length(size) < kFewTokens ? GatedDeltaRuleMode::kRecurrent
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
  if (plan.mode == GatedDeltaRuleMode::kRecurrent)
    plan_recurrence(plan, size, layout, heads);
  else if (walks_whole_sequences(size, pass, gpu))
    plan_whole_sequences(plan, size, packed, gpu, parts);
  else
    plan_chunks(plan, size, packed, layout, heads, piece, states_are_kept, gpu, parts);
  plan.workspace_bytes = parts.end;
  return plan;
}

int64_t bytes_kept(const GatedDeltaRuleSize& size, bool packed, const GatedDeltaRulePiece& piece) {
  return gpu_kept_states(size, packed, piece) * int64_t{sizeof(float)};
}

}  // namespace

GatedDeltaRuleGpuPlan plan(const GatedDeltaRuleSize& size, bool packed, Pass pass, const Gpu& gpu) {
  GatedDeltaRulePiece piece = gpu_piece(size, packed);
  const DeltaLayout layout{static_cast<int>(size_of(size.dtype)),
                           static_cast<int>(delta_padded_keys(size.K)), has_deep_groups(size, gpu)};
  const int64_t columns = DeltaLayout::kPanel * (layout.deep ? 2 : 1);
  if (size.kept_states)
    piece.split = piece.split && delta_split_pays(size, piece, gpu.multiprocessors, columns);
  else if (pass == Pass::kForward && size.mode != GatedDeltaRuleMode::kRecurrent)
    piece = delta_best_split(size, gpu.multiprocessors, columns,
                             /*two_alone=*/has_warp_groups(size, layout, gpu));
  GatedDeltaRuleGpuPlan made = plan(size, packed, pass, gpu, piece);
  // Whatever the device makes of it, there is room for what the problem asks for.
  if (size.kept_states) made.kept_bytes = bytes_kept(size, packed, gpu_piece(size, packed));
  return made;
}

GatedDeltaRuleGpuPlan plan(const GatedDeltaRuleSize& size, bool packed, Pass pass, const Gpu& gpu,
                           GatedDeltaRulePiece piece) {
  const bool forward = pass == Pass::kForward;
  const int64_t kept_bytes = size.kept_states ? bytes_kept(size, packed, piece) : 0;
  if (packed && size.sequences == 0) piece.split = false;
  const bool has_segments = size.kept_states || (forward && piece.split);
  piece.keeps_records =
      piece.keeps_records && size.kept_states && may_keep_records(size, packed, piece);
  piece.keeps_states =
      piece.keeps_states && piece.keeps_records && piece.tokens >= size.length &&
      plan_piece(size, packed, Pass::kForward, gpu, size.sequences, piece).makes_records;
  if (forward || !packed || piece.split) piece.heads = 0;
  if (!has_segments || (packed && !piece.split))
    piece = {piece.batch, size.length, size.length, false, false, piece.heads};
  GatedDeltaRuleSize part = size;  // what is done at once
  if (!forward && !packed) {
    part.batch = part.sequences = piece.batch;
    part.length = piece.tokens;
  }
  if (piece.heads > 0) {
    part.value_heads = piece.heads * (size.value_heads / size.heads);
    part.heads = piece.heads;
  }
  const int64_t segments = delta_segment_count(part, packed, piece);
  const int64_t items = packed && piece.split ? 1 : part.sequences;  // that have so many segments
  const bool states_are_kept = piece.keeps_states && piece.batch >= size.batch;
  GatedDeltaRuleGpuPlan plan = plan_piece(
      part, packed, pass, gpu, items * (piece.split ? segments : 1), piece, states_are_kept);
  plan.piece = piece;
  plan.kept_bytes = kept_bytes;
  plan.kept_step = size.batch * size.value_heads * size.K * size.V;
  plan.transition_step = size.batch * size.value_heads * plan.padded_keys * plan.padded_keys;
  if (plan.whole_sequences || plan.mode == GatedDeltaRuleMode::kRecurrent) {
    plan.piece.split = false;
    return plan;
  }
  if (!forward && piece.keeps_records) plan.records = {};  // nobody makes them
  if (!forward && states_are_kept) plan.scan = {};
  Parts parts{plan.workspace_bytes};
  const int64_t heads = part.sequences * size.value_heads;
  if (piece.split && segments > 1) {
    if (forward && segments > 2)
      plan.unit_parts = ceil_div(plan.padded_keys, 16 * plan.column_warps);
    const DeltaLaunch& scan = forward ? plan.scan : plan.reverse_scan;
    const DeltaLayout layout{static_cast<int>(size_of(size.dtype)),
                             static_cast<int>(plan.padded_keys)};
    plan.ends = launch_of(
        items * size.value_heads * (segments - 1) * (plan.column_parts + plan.unit_parts),
        plan.warp_groups ? DeltaLayout::kGroupScanThreads : scan.block,
        plan.warp_groups && forward ? layout.group_ends_bytes(static_cast<int>(plan.stages))
                                    : scan.shared_bytes);
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
  if (plan.deep_groups && !packed && !piece.split) {
    const int64_t teams = gpu.multiprocessors / plan.column_parts;
    const auto share = [&](DeltaLaunch& launch, int64_t tokens) {
      const int64_t walks = launch.grid / plan.column_parts;
      if (!pays_to_share(walks, ceil_div(tokens, plan.chunk), teams)) return;
      launch.grid = teams * plan.column_parts;
      plan.shares_walks = true;
    };
    share(plan.scan, forward ? part.length : piece.segment);
    if (!forward) share(plan.reverse_scan, part.length);
    if (plan.shares_walks) {
      const DeltaLayout layout{2, static_cast<int>(plan.padded_keys), true};
      plan.handovers_at = parts.reserve(gpu.multiprocessors * layout.deep_handover_bytes());
      plan.signals_bytes = DeltaLayout::deep_signals_bytes(gpu.multiprocessors);
      plan.signals_at = parts.reserve(plan.signals_bytes);
    }
  }
  plan.scans_side_by_side = !forward && !states_are_kept && !plan.corrections_take_place &&
                            !plan.shares_walks &&
                            delta_usual_length(part) >= kFewestSideBySide * plan.chunk &&
                            (piece.split || 2 * plan.reverse_scan.grid <= gpu.multiprocessors);
  const auto parts_of = [](int64_t all, int64_t part) {
    return ceil_div(all, std::max<int64_t>(part, 1));
  };
  if (!forward)
    plan.pieces =
        std::max<int64_t>(parts_of(size.batch, piece.batch) * parts_of(size.length, piece.tokens) *
                              parts_of(size.heads, part.heads),
                          1);
  if (plan.pieces > 1) {
    const GatedDeltaRuleGpuPlan whole = plan_piece(size, packed, pass, gpu, size.sequences, piece);
    plan.bytes = whole.bytes;
    plan.multiplications = whole.multiplications;
  }
  if (plan.pieces > 1 && !packed) {
    // Sums of all pieces, one behind the other; the gradient of the state on its way from piece to piece.
    plan.parameter_sums_at = parts.reserve(plan.pieces * 2 * plan.chunks * size.value_heads * 4);
    plan.carry_at = parts.reserve((piece.split ? 2 : 1) * heads * size.K * size.V * 4);
  }
  plan.workspace_bytes = parts.end;
  return plan;
}

std::string variant_of(const GatedDeltaRuleGpuPlan& plan) {
  if (plan.mode == GatedDeltaRuleMode::kRecurrent) return "recurrence: token after token";
  if (plan.whole_sequences) return "whole sequences: a warp walks one";
  return fmt::format("{}: products of {}",
                     plan.makes_records ? "a scan that makes records" : "records, then a scan",
                     plan.warp_groups || plan.deep_groups ? "warp groups" : "warps");
}

std::string to_string(const GatedDeltaRuleGpuPlan& plan) {
  std::string text = fmt::format(
      "gated_delta_rule {} on a GPU\n"
      "  variant         {}\n"
      "  mode            {}\n",
      name_of(plan.pass), variant_of(plan), name_of(plan.mode));
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
        "  columns         {} of V a block of the scan, {} warps along K\n",
        plan.chunk, plan.padded_keys, 16 * plan.column_warps, plan.key_warps);
    text += plan.deep_groups
                ? "  loads           2 warps; k and P two chunks ahead, v, A and q one\n"
                : fmt::format("  loads           {} warps, {} stages\n", plan.loader_warps,
                              plan.stages);
    if (plan.makes_records)
      text += "  records         made by the scan: by 4 more warps and those that load\n";
    else if (plan.records.grid == 0 && plan.piece.keeps_records)
      text += plan.piece.keeps_states
                  ? "  records         kept by the forward pass, states of the first piece, too\n"
                  : "  records         kept by the forward pass\n";
    else
      add("records", plan.records);
    if (plan.pass == Pass::kForward && plan.piece.split) {
      add("segments alone", plan.ends);
      add("chain", plan.chain);
    }
    const bool scan_comes_last = plan.corrections_take_place;
    if (plan.pass == Pass::kForward || (plan.scan.grid > 0 && !scan_comes_last))
      add("scan", plan.scan);
    if (plan.pass == Pass::kBackward) {
      if (plan.piece.split) {
        add("segments alone", plan.ends);
        add("chain", plan.chain);
      }
      add("reverse scan", plan.reverse_scan);
      if (scan_comes_last) add("scan", plan.scan);
      add("gradients", plan.gradients);
      if (scan_comes_last)
        text += "  corrections     take the place of P, which the reverse scan has read\n";
      if (plan.scans_side_by_side)
        text += "  streams         2: the scan beside what walks in reverse\n";
    }
  }
  if (plan.shares_walks)
    text += "  walks           dealt out evenly where a scan has fewer blocks than walks\n";
  if (plan.piece.heads > 0)
    text += fmt::format("  pieces          {}, one at a time, of {} heads of q and k\n",
                        plan.pieces, plan.piece.heads);
  else if (plan.pieces > 1)
    text += fmt::format("  pieces          {}, one at a time, of {} batch items and {} tokens\n",
                        plan.pieces, plan.piece.batch, plan.piece.tokens);
  if (plan.piece.split)
    text +=
        fmt::format("  segments        of {} tokens, walked side by side\n", plan.piece.segment);
  else if (plan.pass == Pass::kBackward && plan.piece.segment < plan.piece.tokens)
    text += fmt::format("  segments        of {} tokens, whose states are found side by side\n",
                        plan.piece.segment);
  if (plan.kept_bytes > 0)
    text += fmt::format("  kept            {} bytes between the passes\n", plan.kept_bytes);
  return text + fmt::format(
                    "  workspace       {} bytes\n"
                    "  bytes           {}\n"
                    "  multiply-adds   {}   with states",
                    plan.workspace_bytes, plan.bytes, plan.multiplications);
}

}  // namespace linescan
