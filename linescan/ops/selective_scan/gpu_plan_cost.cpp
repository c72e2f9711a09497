#include "linescan/ops/selective_scan/gpu_plan_cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "linescan/base/math.h"
#include "linescan/device/gpu.h"

namespace linescan {
namespace {

using Plan = SelectiveScanGpuPlan;
using Size = SelectiveScanSize;

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
  // Longer chains of instructions that do not wait for each other.
  if (plan.pass == Pass::kBackward && !plan.channels_last)
    return std::clamp(filled / (plan.many_states ? 24 : 16), 0.01, 0.58);
  return std::clamp(filled / 24, 0.01, 0.55);
}

}  // namespace

double first_kernel_cycles(const Size& size, const Plan& plan, const Gpu& gpu) {
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
  // It is a forward kernel, whichever pass it serves.
  const double busy = plan.state_lanes ? busy_of(plan, filling.filled)
                                       : std::clamp(filling.filled / 24, 0.01, 0.55);
  return waves * filling.filled * real(plan.tiles) * tile / (4 * busy);
}

// Instructions of a warp are counted in the kernels; measured on an H200, 2026-11-21: a scheduler with three or
// four warps issues in about every other cycle.
double expected_cycles(const Size& size, const Plan& plan, const Gpu& gpu) {
  const bool alone = plan.segments == 1, backward = plan.pass == Pass::kBackward;
  const double steps = doublings(plan.segments);
  const auto [share, filled, waves, waves_begun] = filling_of(plan, gpu);
  const double busy = busy_of(plan, filled);
  const double extra_bytes = backward ? 8.0 * real(workspace_layout(size, plan).floats) : 0;
  const double extra = extra_bytes / (16.0 * real(gpu.multiprocessors));
  if (plan.one_state && !backward && !plan.short_rows) {
    // Fitted to the times of all plans for fourteen rows of 128 to 16 384 steps (decision 0044).
    const double turns = real(ceil_div(plan.rows, kOneWarps * rows_of_warp(plan)));
    const double block = real(plan.tiles) * (turns * (160 + 21 * real(plan.items)) + 110) + 760;
    const double begun = share <= 1 ? 1 : share + 0.24 * (std::ceil(share) - share);
    const double together = 1 + 0.56 / std::max(1.0, share);
    return begun * together * filled * block / (4 * std::min(0.75, filled / 8.7));
  }
  const double slices = real(ceil_div(size.batch, std::max<int64_t>(plan.slice, 1)));
  if (plan.whole_rows > 0) {
    const double turns = real(ceil_div(plan.rows, kOneWarps * plan.whole_rows));
    const double block = turns * (410 * real(plan.whole_rows) + 130) + 900;
    return slices * (waves_begun * filled * block / (4 * busy) + extra);
  }
  if (plan.one_state) {
    // Fitted to the times of all plans for four rows of the published table: blocks that start together wait
    // for memory together, and a tile has its own cost.
    const bool long_rows = plan.segments == kGpuWarp;
    const double waiting = !backward ? 2.0 : long_rows ? 0.6 : 1.3;
    const double own = long_rows ? 700 : 15;
    const double together = 1 + waiting / (real(plan.tiles) * std::max(1.0, share));
    const double turns = real(ceil_div(plan.rows, kOneWarps * rows_of_warp(plan)));
    const bool states_first = plan.tiles > 1 && plan.kept_steps == 0;
    // Instructions, of a tile's rows at once.
    const double turn = 550 + 20 * steps + (states_first ? 200 + 8 * steps : 0);
    const double tile = plan.short_rows ? (backward ? 480.0 : 270.0) : turns * turn + own;
    const double tiles = real(plan.tiles) - (plan.tail ? 0.65 : 0);
    return slices * (waves_begun * together * filled * tiles * tile / (4 * busy) + extra);
  }
  if (plan.state_lanes) {
    const double rounds = real(ceil_div(size.states, 2 * plan.segments));
    const double chunks = real(ceil_div(size.states, kChunkStates));
    const double tile =
        rounds * 190 + chunks * 115 + 450 / real(plan.segments) + 100 + 90 * real(plan.segments);
    return waves_begun * filled * real(plan.tiles) * tile / (4 * busy);
  }
  if (plan.walkers) {
    // Cycles of a block's tile, fitted to the times of one block a multiprocessor with 2 to 32 states, beside other variants'
    // estimates: where walkers are few a tile is waited for, not worked at.
    const double walkers = real(plan.warps - 2 * plan.places);
    double tile =
        backward ? std::max(2500.0, 1520 + 300 * walkers) : std::max(1320.0, 740 + 185 * walkers);
    if (plan.places == 2 && !backward) tile *= 1.15;
    if (backward && plan.kept_steps == 0) tile += 275 * walkers;  // the first kernel
    const double blocks = filled / real(plan.warps);
    return slices *
           (waves_begun * (blocks > 1 ? 0.77 * blocks : 1) * real(plan.tiles) * tile + extra);
  }
  if (plan.many_states) {  // both kernels, and waiting at a tile's ends
    const double states = real(ceil_div(size.states, plan.shares)), shares = real(plan.shares);
    double tile = states * 293 + 860 + 4740 / (shares * shares);
    if (plan.kept_steps == 0) tile += states * 112 + 600;
    return slices * (waves * filled * real(plan.tiles) * tile / (4 * busy) + extra);
  }
  if (plan.channels_last) {
    const double states = real(ceil_div(size.states, plan.shares));
    const double tile =
        states * (backward ? 420 : 105) + (backward ? 1700 : 900) +
        (plan.shares > 1 ? (backward ? 200 : 100) : 0) +
        // What does not come ahead of its tile (FactorFeed) is waited for.
        300 * real(std::max<int64_t>(
                  0, ceil_div(2 * kChunkStates * kGpuItems, plan.block) - kChunkAhead));
    return slices * (waves * filled * real(plan.tiles) * tile / (4 * busy) + extra);
  }
  double item, state, state_tile, tile;  // instructions
  if (!backward) {
    item = 32, state = alone ? 6.5 : 8.5, state_tile = alone ? 15 : 30 + 6 * steps, tile = 250;
  } else {
    item = 60, state = alone ? 21 : 27, state_tile = alone ? 30 : 60 + 14 * steps, tile = 500;
    if (plan.tiles > 1 && plan.kept_steps == 0)
      item += 26, state += alone ? 5.5 : 7.5, state_tile += alone ? 15 : 30 + 6 * steps,
          tile += 200;
  }
  if (plan.together > 1) state *= 0.92;
  if (!plan.shared_carries) state_tile += 40;
  // Rows that do not start at multiples of 16 bytes come in smaller pieces, unless they come whole.
  const int64_t row_bytes = size.length * static_cast<int64_t>(size_of(size.dtype));
  if (row_bytes % 16 != 0 && plan.tiles > 1)
    item += (backward ? 3.0 : 1.5) * (row_bytes % 8 == 0 ? 4 : row_bytes % 4 == 0 ? 10 : 30);
  const int64_t units =
      2 * plan.state_tile * tile_of(plan) * static_cast<int64_t>(size_of(size.dtype)) / 16;
  const double chunk =
      (backward ? 250 : 60) + 200 * real(ceil_div(units, kGpuWarp)) / real(plan.warps) *
                                  (backward && plan.tiles > 1 && plan.kept_steps == 0 ? 2 : 1);
  const double states = real(ceil_div(size.states, plan.shares));  // of a warp
  if (plan.shares > 1) item += 10, tile += 100;                    // sums over the team
  const double warp = real(plan.tiles * kGpuItems) * (item + states * state) +
                      real(plan.tiles) * (tile + states * state_tile +
                                          real(ceil_div(size.states, plan.state_tile)) * chunk);
  return slices * (waves * filled * warp / (4 * busy) + extra);
}

}  // namespace linescan
