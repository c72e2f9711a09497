#include "linescan/ops/selective_scan/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "linescan/base/error.h"
#include "linescan/base/math.h"

namespace linescan {
namespace {

using Plan = SelectiveScanGpuPlan;
using Size = SelectiveScanSize;

constexpr int64_t kSharedReserved = 1024;  // that the driver adds to every block's shared memory
constexpr int64_t kWorkspaceLimit = int64_t{1} << 31;  // what grows with a slice of the batch

// Registers of a thread and warps of a block, as the kernels' launch bounds have them.
struct Bounds {
  int64_t registers, warps;
};
Bounds bounds_of(const Plan& plan, DType dtype) {
  const bool forward = plan.pass == Pass::kForward;
  if (plan.short_rows) return {forward ? 80 : 128, 1};
  if (plan.one_state) return {!forward ? 128 : dtype == DType::kFloat32 ? 96 : 80, kOneWarps};
  if (plan.channels_last) return {168, kChannelsLastMaxWarps};
  if (plan.state_lanes) return {128, kStateLanesMaxWarps};
  return forward ? Bounds{128, kGpuScanMaxWarps} : Bounds{168, 6};
}

int64_t rows_of_warp(const Plan& plan) { return kGpuWarp / plan.segments; }
int64_t tile_of(const Plan& plan) {
  if (plan.state_lanes) return kGpuItems;
  return plan.segments * (plan.short_rows ? kShortItems : plan.one_state ? kOneItems : kGpuItems);
}

// Whether the last tile of a row of one state goes by fewer steps a lane. Backward with few lanes a row that costs the other tiles
// registers, and pays only where they are few.
bool has_tail(const Size& size, const Plan& plan) {
  if (!plan.one_state || plan.short_rows || plan.tiles == 0) return false;
  const int64_t rest = size.length - (plan.tiles - 1) * tile_of(plan);
  return rest <= plan.segments * kOneTailItems &&
         (plan.pass == Pass::kForward || plan.segments == kGpuWarp || plan.tiles <= kOneFewTiles);
}

// States of B and C held at once: a share of shared memory, to which the backward pass adds the sums
// of each warp.
int64_t largest_state_tile(const Size& size, const Plan& plan) {
  if (plan.channels_last || plan.state_lanes) return kChunkStates;
  const int64_t elements = plan.pass == Pass::kForward ? 1024 : 512;
  const int64_t states = std::clamp<int64_t>(elements / tile_of(plan), 1, size.states);
  return round_up(states, plan.shares);  // as many for each warp of a team
}

// Whether the variants without shared memory between registers and sequences can run it.
bool is_plain(const Size& size) {
  return !size.constant_B && !size.constant_C && !size.gate &&
         (size.out_dtype == size.dtype || size.out_dtype == DType::kFloat32);
}

bool may_be_one_state(const Size& size) {
  return size.states == 1 && is_plain(size) && size.length_last;
}

bool may_be_many_states(const Size& size, const Plan& plan) {
  return plan.pass == Pass::kBackward && size.states > 1 && is_plain(size) && size.length_last &&
         plan.segments == 1 && plan.shares == plan.warps && plan.shared_carries;
}

bool may_be_channels_last(const Size& size, const Plan& plan) {
  return (size.states > 1 || size.ordered) && is_plain(size) && !size.length_last &&
         plan.segments == 1 && size.length < int64_t{1} << 31;
}

// Whether a row's lanes may divide its states on the way forward.
bool may_be_state_lanes(const Size& size) {
  Size ungated = size;
  ungated.gate = false;
  return size.states > 1 && is_plain(ungated) && size.length_last;
}

// A forward plan whose lanes divide the states, before fill().
Plan state_lanes_plan(int64_t lanes, int64_t warps) {
  Plan plan;
  plan.state_lanes = plan.shared_carries = true;
  plan.segments = lanes, plan.warps = warps, plan.shares = 1;
  plan.state_tile = kChunkStates;
  return plan;
}

// Rows that start at multiples of 8 bytes have wide accesses of their own, and lie in shared memory so that
// lanes would meet the same banks.
bool may_be_short_rows(const Size& size) {
  return may_be_one_state(size) && size.length <= kShortLength &&
         size.length * static_cast<int64_t>(size_of(size.dtype)) % 8 != 0;
}

// How rows of one state are walked where states are kept. The same for both passes, whose tiles have to agree,
// and so for every device.
Plan one_state_kept(const Size& size) {
  Plan plan;
  plan.one_state = true;
  plan.short_rows = may_be_short_rows(size) && size.batch * size.channels >= kManyRows &&
                    size.channels >= kGpuWarp * size.groups;
  plan.segments = plan.short_rows ? 1 : size.length >= kOneLong ? kGpuWarp : kOneFewLanes;
  return plan;
}

// Whether the states of a row may be divided among that many warps of a block.
bool may_share(const Size& size, const Plan& plan) {
  if (plan.channels_last && kChunkStates % plan.shares != 0) return false;
  const bool simple = !size.constant_B && !size.constant_C && !size.gate;
  return plan.shares == 1 ||
         (simple && plan.shares <= size.states && plan.warps % plan.shares == 0);
}

void fill(const Size& size, const Gpu& gpu, Plan& plan) {
  if (!plan.one_state) plan.rows = plan.warps / plan.shares * rows_of_warp(plan);
  plan.blocks = ceil_div(size.channels / std::max<int64_t>(size.groups, 1), plan.rows);
  plan.tiles = ceil_div(size.length, tile_of(plan));
  plan.tail = has_tail(size, plan);
  plan.slice = std::max<int64_t>(size.batch, 1);
  if (plan.pass == Pass::kBackward) {
    Plan one = plan, two = plan;
    one.slice = 1, two.slice = 2;
    const int64_t each = std::max<int64_t>(
        4 * (workspace_layout(size, two).floats - workspace_layout(size, one).floats), 1);
    const int64_t slices = ceil_div(size.batch, std::max<int64_t>(1, kWorkspaceLimit / each));
    plan.slice = std::max<int64_t>(1, ceil_div(size.batch, std::max<int64_t>(1, slices)));
  }
  plan.grid = std::min(plan.slice, size.batch) * size.groups * plan.blocks;
  plan.block = plan.warps * kGpuWarp;
  plan.shared_bytes = shared_layout(size, plan, false).bytes;
  plan.shared_limit = gpu.shared_per_block;
  const Bounds bounds = bounds_of(plan, size.dtype);
  plan.blocks_per_multiprocessor =
      std::min({gpu.shared_per_multiprocessor / (plan.shared_bytes + kSharedReserved),
                gpu.blocks_per_multiprocessor, gpu.threads_per_multiprocessor / plan.block,
                gpu.registers_per_multiprocessor / (bounds.registers * plan.block)});
  plan.warps_per_multiprocessor = plan.blocks_per_multiprocessor * plan.warps;
}

bool fits(const Size& size, const Plan& plan, const Gpu& gpu) {
  return plan.shared_bytes <= gpu.shared_per_block && plan.blocks_per_multiprocessor >= 1 &&
         plan.warps <= bounds_of(plan, size.dtype).warps;
}

double real(int64_t x) { return static_cast<double>(x); }
double doublings(int64_t power) { return std::bit_width(static_cast<uint64_t>(power)) - 1; }

// How a launch fills a multiprocessor.
struct Filling {
  double share;   // blocks over those that are resident at once
  double filled;  // warps
  double waves,
      waves_begun;  // the latter: an incomplete wave costs a third of what it leaves empty
};
Filling filling_of(const Plan& plan, const Gpu& gpu) {
  const double blocks = real(plan.grid) / real(gpu.multiprocessors);
  const double resident = real(plan.blocks_per_multiprocessor), share = blocks / resident;
  return {.share = share,
          .filled = std::min(resident, std::ceil(blocks)) * real(plan.warps),
          .waves = share < 4 ? std::ceil(share) : share + 0.5,
          .waves_begun = share <= 1 ? 1 : share + 0.35 * (std::ceil(share) - share)};
}

// What is expected of a multiprocessor's schedulers: the share of cycles in which they issue. Lanes that
// divide states have two chains each: half of the warps keep a scheduler as busy.
double busy_of(const Plan& plan, double filled) {
  if (plan.state_lanes) return std::clamp(filled / 15, 0.01, 0.58);
  if (plan.one_state) return std::clamp(filled / 28, 0.01, 0.75);
  return std::clamp(filled / 24, 0.01, 0.55);
}

// Expected cycles of a backward pass's first kernel with several states: with state_lanes, or as the general
// variant goes.
double first_kernel_cost(const Size& size, const Plan& plan, const Gpu& gpu) {
  const Filling filling = filling_of(plan, gpu);
  const double lanes = real(plan.segments);
  double tile, waves = filling.waves;
  if (plan.state_lanes) {
    tile = real(ceil_div(size.states, 2 * plan.segments)) * 130 +
           real(ceil_div(size.states, kChunkStates)) * 60 + 300 / lanes + 60 + 28 * lanes;
    waves = filling.waves_begun;
  } else {
    const bool alone = plan.segments == 1;
    const double states = real(ceil_div(size.states, plan.shares));
    tile = kGpuItems * (26 + states * (alone ? 5.5 : 7.5)) + 200 +
           states * (alone ? 15 : 30 + 6 * doublings(plan.segments));
  }
  return waves * filling.filled * real(plan.tiles) * tile / (4 * busy_of(plan, filling.filled));
}

// Expected cycles of one multiprocessor. Instructions of a warp are counted in the kernels; measured
// on an H200, 2026-11-21: a scheduler with three or four warps issues in about every other cycle.
double cost(const Size& size, const Plan& plan, const Gpu& gpu) {
  const bool alone = plan.segments == 1, backward = plan.pass == Pass::kBackward;
  const double steps = doublings(plan.segments);
  const auto [share, filled, waves, waves_begun] = filling_of(plan, gpu);
  const double busy = busy_of(plan, filled);
  const double extra_bytes = backward ? 8.0 * real(workspace_layout(size, plan).floats) : 0;
  const double extra = extra_bytes / (16.0 * real(gpu.multiprocessors));
  if (plan.one_state) {
    // Fitted to the times of all plans for four rows of the published table: blocks that start together wait
    // for memory together, and a tile has its own cost.
    const bool long_rows = plan.segments == kGpuWarp;
    const double waiting = !backward ? 2.0 : long_rows ? 0.6 : 1.3;
    const double own = backward ? (long_rows ? 700 : 15) : (long_rows ? 64 : 24);
    const double together = 1 + waiting / (real(plan.tiles) * std::max(1.0, share));
    const double turns = real(ceil_div(plan.rows, kOneWarps * rows_of_warp(plan)));
    double turn = 250 + 8 * steps;  // instructions, of a tile's rows at once
    const bool states_first = plan.tiles > 1 && !size.kept_states;
    if (backward) turn = 550 + 20 * steps + (states_first ? 200 + 8 * steps : 0);
    const double tile = plan.short_rows ? (backward ? 480.0 : 270.0) : turns * turn + own;
    const double tiles = real(plan.tiles) - (plan.tail ? 0.65 : 0);
    return waves_begun * together * filled * tiles * tile / (4 * busy) + extra;
  }
  if (plan.state_lanes) {
    const double rounds = real(ceil_div(size.states, 2 * plan.segments));
    const double chunks = real(ceil_div(size.states, kChunkStates));
    const double tile =
        rounds * 190 + chunks * 115 + 450 / real(plan.segments) + 100 + 28 * real(plan.segments);
    return waves_begun * filled * real(plan.tiles) * tile / (4 * busy);
  }
  if (plan.many_states) {  // both kernels, and waiting at a tile's ends
    const double states = real(ceil_div(size.states, plan.shares));
    return real(ceil_div(size.batch, plan.slice)) *
           (waves * filled * real(plan.tiles) * (states * 560 + 1900) / (4 * busy) + extra);
  }
  if (plan.channels_last) {
    const double states = real(ceil_div(size.states, plan.shares));
    const double tile =
        states * (backward ? 420 : 105) + (backward ? 1700 : 900) +
        (plan.shares > 1 ? (backward ? 200 : 100) : 0) +
        // What does not come ahead of its tile (FactorFeed) is waited for.
        300 * real(std::max<int64_t>(
                  0, ceil_div(2 * kChunkStates * kGpuItems, plan.block) - kChunkAhead));
    const double slices = real(ceil_div(size.batch, plan.slice));
    return slices * (waves * filled * real(plan.tiles) * tile / (4 * busy) + extra);
  }
  double item, state, state_tile, tile;  // instructions
  if (!backward) {
    item = 32, state = alone ? 6.5 : 8.5, state_tile = alone ? 15 : 30 + 6 * steps, tile = 250;
  } else {
    item = 60, state = alone ? 21 : 27, state_tile = alone ? 30 : 60 + 14 * steps, tile = 500;
    if (plan.tiles > 1)
      item += 26, state += alone ? 5.5 : 7.5, state_tile += alone ? 15 : 30 + 6 * steps,
          tile += 200;
  }
  if (!plan.shared_carries) state_tile += 40;
  // Rows that do not start at multiples of 16 bytes come in smaller pieces, unless they come whole.
  const int64_t row_bytes = size.length * static_cast<int64_t>(size_of(size.dtype));
  if (row_bytes % 16 != 0 && plan.tiles > 1)
    item += (backward ? 3.0 : 1.5) * (row_bytes % 8 == 0 ? 4 : row_bytes % 4 == 0 ? 10 : 30);
  const int64_t units =
      2 * plan.state_tile * tile_of(plan) * static_cast<int64_t>(size_of(size.dtype)) / 16;
  const double chunk = (backward ? 250 : 60) + 200 * real(ceil_div(units, kGpuWarp)) /
                                                   real(plan.warps) *
                                                   (backward && plan.tiles > 1 ? 2 : 1);
  const double states = real(ceil_div(size.states, plan.shares));  // of a warp
  if (plan.shares > 1) item += 10, tile += 100;                    // sums over the team
  const double warp = real(plan.tiles * kGpuItems) * (item + states * state) +
                      real(plan.tiles) * (tile + states * state_tile +
                                          real(ceil_div(size.states, plan.state_tile)) * chunk);
  const double slices = real(ceil_div(size.batch, plan.slice));
  return slices * (waves * filled * warp / (4 * busy) + extra);
}

// The best first kernel with state_lanes for a backward pass: its lanes, 0 if none runs, and its cost.
struct Ahead {
  int64_t lanes = 0;
  double cost = 0;
};
Ahead best_ahead(const Size& size, const Gpu& gpu) {
  Ahead best;
  if (!may_be_state_lanes(size)) return best;
  for (int64_t lanes = 2; lanes <= kStateLanesMost; lanes *= 2) {
    Plan plan = state_lanes_plan(lanes, kStateLanesMaxWarps);
    fill(size, gpu, plan);
    if (!fits(size, plan, gpu)) continue;
    const double cost = first_kernel_cost(size, plan, gpu);
    if (best.lanes == 0 || cost < best.cost) best = {lanes, cost};
  }
  return best;
}

}  // namespace

Plan ahead_plan(const Size& size, const Plan& plan) {
  if (plan.ahead_lanes == 0) return plan;
  const Plan kind = state_lanes_plan(plan.ahead_lanes, kStateLanesMaxWarps);
  Plan ahead = plan;  // tiles, slice and so where the states go remain
  ahead.many_states = false;
  ahead.state_lanes = kind.state_lanes, ahead.segments = kind.segments, ahead.warps = kind.warps;
  ahead.shares = kind.shares, ahead.state_tile = kind.state_tile;
  ahead.rows = ahead.warps * rows_of_warp(ahead);
  ahead.blocks = ceil_div(size.channels / std::max<int64_t>(size.groups, 1), ahead.rows);
  ahead.block = ahead.warps * kGpuWarp;
  return ahead;
}

int64_t carry_arrays(const Size& size, const Plan& plan) {
  if (plan.pass == Pass::kForward) return 2;
  if (plan.channels_last) return 4;
  return 3 + (size.constant_B ? 1 : 0) + (size.constant_C ? 1 : 0);
}

int64_t gpu_kept_states(const Size& size) {
  if (!may_be_one_state(size)) return 0;
  const int64_t tiles = ceil_div(size.length, tile_of(one_state_kept(size)));
  return std::max<int64_t>(tiles - 1, 0) * size.batch * size.channels;
}

SelectiveScanShared shared_layout(const Size& size, const Plan& plan, bool states_only) {
  SelectiveScanShared shared;
  const auto take = [&](int64_t bytes) {
    const int64_t offset = shared.bytes;
    shared.bytes += round_up(bytes, 128);
    return offset;
  };
  const bool backward = plan.pass == Pass::kBackward && !states_only;
  if (plan.short_rows) {  // rows as they lie in memory; out takes the place of u and delta
    const DType types[4] = {size.dtype, size.dtype, size.dtype, size.out_dtype};
    for (int i : {0, 1, 3})
      if (i != 3 || backward)
        shared.sequence[i] = take(kGpuWarp * size.length * static_cast<int64_t>(size_of(types[i])));
    shared.factors = take(2 * plan.tiles * kShortPitch * 4);
    return shared;
  }
  if (plan.one_state) {  // what rows need and carry, their sums, those of two tiles' steps
    take(plan.rows * 4 * 4);
    if (backward) take(plan.rows * 4 * 4), take(2 * kOneWarps * 2 * tile_of(plan) * 4);
    return shared;
  }
  if (plan.many_states) {
    shared.sequence[0] = take(3 * kGpuExchange * 4);  // dt, dt u, gradient of out
    shared.exchange = take(plan.warps * exchange_floats(2) * 4);
    shared.carries = take(2 * size.states * plan.rows * 4);
    return shared;
  }
  if (plan.state_lanes) {
    const int64_t slots = 2 * ceil_div(size.states, 2 * plan.segments);
    shared.exchange = take(plan.warps * kGpuExchange * 4);
    shared.items = take(plan.warps * 2 * rows_of_warp(plan) * kGpuSegmentPitch * 4);
    shared.factors = take(plan.warps * 2 * kChunkStates * kChunkPitch * 4);
    shared.carries = take(plan.warps * slots * kGpuWarp * 8);
    return shared;
  }
  const int64_t teams = plan.warps / plan.shares;
  if (plan.channels_last) {
    const DType types[4] = {size.dtype, size.dtype, size.dtype, size.out_dtype};
    for (int i : {0, 1, 3}) {
      if (i == 3 && !backward) continue;
      shared.stage[i] = kGpuWarp * kGpuItems * static_cast<int64_t>(size_of(types[i]));
      shared.sequence[i] = take(2 * teams * shared.stage[i]);
    }
    shared.factors = take(2 * kChunkStates * kChunkPitch * 4);
    if (backward) {
      shared.sums = take(teams * kChunkStates * kSumPitch * 4);
      shared.items = take(plan.warps * kGpuExchange * 4);
    }
    if (plan.shares > 1 && !states_only)
      shared.exchange = take(plan.warps * exchange_floats(plan.shares) * 4);
    if (plan.shared_carries)
      shared.carries =
          take((backward ? carry_arrays(size, plan) : 2) * size.states * plan.rows * 4);
    return shared;
  }
  const int64_t data = static_cast<int64_t>(size_of(size.dtype));
  const int64_t tile = tile_of(plan), padded = plan.segments * kGpuSegmentPitch;
  const int64_t elements[4] = {data, data, size.gate && !states_only ? data : 0,
                               backward ? static_cast<int64_t>(size_of(size.out_dtype)) : 0};
  for (int i = 0; i < 4; ++i) {
    if (elements[i] == 0) continue;
    // 16 bytes between rows, or a step's rows between segments, keep lanes in different banks.
    shared.stage[i] = kGpuWarp * kGpuItems * elements[i] +
                      std::max(16 * rows_of_warp(plan), kGpuWarp * elements[i]);
    shared.sequence[i] = take(2 * teams * shared.stage[i]);
  }
  if (!states_only) shared.exchange = take(plan.warps * exchange_floats(plan.shares) * 4);
  shared.factors = take(2 * 2 * plan.state_tile * padded * 4);
  shared.arrival_slots = 2 * ceil_div(plan.state_tile * tile * data / 16, plan.block);
  shared.arrivals = take(shared.arrival_slots * plan.block * 16);
  if (backward) {
    shared.sums = take(teams * 2 * plan.state_tile * padded * 4);
    shared.states = take(2 * plan.state_tile * plan.rows * 4);
  }
  if (plan.shared_carries)
    shared.carries = take((backward ? carry_arrays(size, plan) : 2) * size.states * plan.rows * 4);
  return shared;
}

SelectiveScanWorkspace workspace_layout(const Size& size, const Plan& plan) {
  SelectiveScanWorkspace workspace;
  const auto take = [&](int64_t floats) {
    const int64_t offset = workspace.floats;
    workspace.floats += round_up(floats, 32);
    return offset;
  };
  const int64_t states = size.channels * size.states;
  if (!plan.shared_carries)
    workspace.carries = take(carry_arrays(size, plan) * plan.slice * states);
  if (plan.pass == Pass::kForward) return workspace;
  if (!plan.one_state || !size.kept_states)
    workspace.states = take(std::max<int64_t>(plan.tiles - 1, 0) * plan.slice * states);
  for (int i = 0; i < 2; ++i)
    if (plan.blocks > 1 && !(i == 0 ? size.constant_B : size.constant_C))
      workspace.sums[i] = take(plan.blocks * plan.slice * size.groups * size.states * size.length);
  if (plan.many_states) workspace.rates = take(states);
  workspace.A = take(size.batch * states);
  workspace.D = take(size.batch * size.channels);
  workspace.bias = take(size.batch * size.channels);
  for (int i = 0; i < 2; ++i)
    if (i == 0 ? size.constant_B : size.constant_C)
      workspace.constant[i] = take(size.batch * states);
  return workspace;
}

std::vector<SelectiveScanGpuPlan> legal_plans(const SelectiveScanSize& size, Pass pass,
                                              const Gpu& gpu) {
  // What a problem costs at least does not depend on the device.
  const SelectiveScanPlan least = plan(size, pass, 1);
  std::vector<Plan> plans;
  const Ahead ahead = pass == Pass::kBackward ? best_ahead(size, gpu) : Ahead{};
  const auto consider = [&](Plan& candidate) {
    fill(size, gpu, candidate);
    if (!fits(size, candidate, gpu)) return;
    // The many-states variant has no first kernel of its own.
    if (candidate.many_states && ahead.lanes == 0) return;
    if (candidate.many_states || ahead.cost <= first_kernel_cost(size, candidate, gpu))
      candidate.ahead_lanes = ahead.lanes;
    candidate.workspace_bytes = 4 * workspace_layout(size, candidate).floats;
    candidate.bytes = least.bytes;
    candidate.exponentials = least.exponentials;
    plans.push_back(candidate);
  };
  if (may_be_one_state(size)) {
    const Plan kept = one_state_kept(size);
    Plan candidate;
    candidate.pass = pass;
    candidate.one_state = true;
    candidate.shares = candidate.state_tile = 1;
    candidate.shared_carries = true;
    if (size.kept_states ? kept.short_rows : may_be_short_rows(size)) {
      candidate.short_rows = true;
      candidate.segments = candidate.warps = 1;
      candidate.rows = kGpuWarp;
      consider(candidate);
      candidate.short_rows = false;
    }
    if (!size.kept_states || !kept.short_rows) {
      candidate.segments = kept.short_rows ? kOneFewLanes : kept.segments;
      candidate.warps = kOneWarps;
      const int64_t channels = size.channels / std::max<int64_t>(size.groups, 1);
      const int64_t turn = kOneWarps * rows_of_warp(candidate);
      for (int64_t parts = 1; parts <= 64; ++parts) {
        candidate.rows = std::max<int64_t>(1, ceil_div(channels, parts));
        if (parts == 1 || (candidate.rows >= turn && ceil_div(channels, candidate.rows) == parts))
          consider(candidate);
      }
    }
    if (!plans.empty()) return plans;
  }
  if (pass == Pass::kForward && may_be_state_lanes(size))
    for (int64_t lanes = 2; lanes <= kStateLanesMost; lanes *= 2)
      for (int64_t warps = kStateLanesMaxWarps; warps >= 1;
           warps /= 2) {  // the first of equal ones wins
        Plan candidate = state_lanes_plan(lanes, warps);
        consider(candidate);
      }
  const bool constant = size.constant_B || size.constant_C;
  Plan any;
  any.pass = pass;
  const int64_t most_warps = bounds_of(any, size.dtype).warps;
  for (int64_t segments = 1; segments <= kGpuWarp; segments *= 2)
    for (int64_t warps = 1; warps <= most_warps; ++warps)
      for (int64_t shares = 1; shares <= warps; ++shares)
        for (const bool shared_carries : {true, false}) {
          if (constant && segments != kGpuConstantSegments) continue;
          Plan candidate;
          candidate.pass = pass;
          candidate.segments = segments;
          candidate.shares = shares;
          candidate.warps = warps;
          candidate.shared_carries = shared_carries;
          candidate.many_states = may_be_many_states(size, candidate);
          candidate.channels_last = may_be_channels_last(size, candidate);
          if (size.ordered && !candidate.channels_last) continue;  // no other knows an order
          if (!may_share(size, candidate)) continue;
          const int64_t largest = largest_state_tile(size, candidate);
          for (const int64_t half : {1, 2}) {
            const int64_t state_tile = round_up(ceil_div(largest, half), shares);
            const bool fixed = candidate.many_states || candidate.channels_last;
            if (candidate.state_tile == state_tile || (fixed && half > 1)) continue;
            candidate.state_tile = state_tile;
            consider(candidate);
          }
        }
  return plans;
}

SelectiveScanGpuPlan plan(const SelectiveScanSize& size, Pass pass, const Gpu& gpu) {
  const std::vector<Plan> plans = legal_plans(size, pass, gpu);
  if (plans.empty() && size.ordered)
    throw_error<Unsupported>(
        "selective_scan: steps in an order need B and C of every step, no gate, out of the inputs' "
        "type or float32 and fewer than 2^31 steps on {}",
        gpu.name);
  if (plans.empty())
    throw_error<Unsupported>("selective_scan: {} bytes of shared memory a block are too few on {}",
                             gpu.shared_per_block, gpu.name);
  return *std::min_element(plans.begin(), plans.end(), [&](const Plan& a, const Plan& b) {
    return cost(size, a, gpu) < cost(size, b, gpu);
  });
}

std::string to_string(const SelectiveScanGpuPlan& plan) {
  const int64_t tile = tile_of(plan);
  std::string text = fmt::format(
      "selective_scan {} on a GPU\n"
      "  variant         {}\n"
      "  grid, block     {} blocks of {} threads\n"
      "  rows            {} a block, {} warps share the states of a row\n"
      "  group           {} blocks for its channels\n"
      "  tile            {} steps, {} a row{}\n"
      "  state tile      {} states of B and C in shared memory at once\n"
      "  carries         in {}\n"
      "  shared memory   {} of {} bytes a block\n"
      "  occupancy       {} blocks, {} warps a multiprocessor\n",
      name_of(plan.pass),
      plan.short_rows  ? "one state, short rows: a lane walks a row"
      : plan.one_state ? fmt::format("one state: {} lanes along a row, rows in turn", plan.segments)
      : plan.many_states   ? "many states: a lane walks a row, warps divide its states"
      : plan.channels_last ? "channels last: a lane walks a row, neighbours in memory"
      : plan.state_lanes ? fmt::format("state lanes: {} lanes divide a row's states", plan.segments)
      : plan.segments == 1 ? "serial: a lane walks a row"
                           : fmt::format("segmented: {} lanes share a row", plan.segments),
      plan.grid, plan.block, plan.rows, plan.shares, plan.blocks, tile, plan.tiles,
      plan.tail ? ", the last one short" : "", plan.state_tile,
      plan.shared_carries ? "shared memory" : "the workspace", plan.shared_bytes, plan.shared_limit,
      plan.blocks_per_multiprocessor, plan.warps_per_multiprocessor);
  if (plan.ahead_lanes > 0)
    text += fmt::format("  first kernel    {} lanes divide a row's states\n", plan.ahead_lanes);
  if (plan.pass == Pass::kBackward)
    text += fmt::format("  batch slice     {} items at a time\n", plan.slice);
  return text + fmt::format(
                    "  workspace       {} bytes\n"
                    "  bytes           {}\n"
                    "  exponentials    {}",
                    plan.workspace_bytes, plan.bytes, plan.exponentials);
}

}  // namespace linescan
