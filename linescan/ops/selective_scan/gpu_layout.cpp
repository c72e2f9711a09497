// Where a plan's kernels have their things: in a block's shared memory and in the workspace.
#include <algorithm>

#include "linescan/base/math.h"
#include "linescan/ops/selective_scan/gpu_plan.h"

namespace linescan {
namespace {

using Plan = SelectiveScanGpuPlan;
using Size = SelectiveScanSize;

}  // namespace

int64_t carry_floats(const Size& size, const Plan& plan) {
  if (plan.pass == Pass::kForward) return 2;
  if (plan.channels_last) return 4;
  return size.constant_B || size.constant_C ? 5 : 3;
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
  // What rows need; for every warp two times some rows and a lane's steps behind them.
  if (plan.whole_rows > 0) {
    take(plan.rows * 4 * 4);
    const DType types[4] = {size.dtype, size.dtype, size.dtype, size.out_dtype};
    for (int i : {0, 1, 3}) {
      const int64_t numbers = plan.whole_rows * size.length + kWholeItems;
      shared.stage[i] = round_up(numbers * static_cast<int64_t>(size_of(types[i])), 16);
      shared.sequence[i] = take(2 * kOneWarps * shared.stage[i]);
    }
    return shared;
  }
  if (plan.one_state) {  // what rows need and carry; their sums, those of two tiles' steps, or u and delta
    take(plan.rows * 4 * 4);
    if (backward)
      take(plan.rows * 4 * 4), take(2 * kOneWarps * 2 * tile_of(plan) * 4);
    else
      shared.sequence[0] = take(kOneWarps * kOneAhead * 2 * kGpuWarp * plan.items *
                                static_cast<int64_t>(size_of(size.dtype)));
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
  if (plan.walkers) {
    const int64_t walkers = plan.warps - 2 * plan.places;
    const WalkersShape shape = backward ? kWalkersBackward : kWalkersForward;
    shared.items = take(plan.places * (backward ? 3 : 2) * kGpuExchange * 4);
    shared.factors = take(plan.places * walkers * shape.states * kWalkersPitch * 4);
    shared.exchange = take(plan.places * walkers * (backward ? 2 : 1) * kGpuExchange * 4);
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
          take((backward ? carry_floats(size, plan) : 2) * size.states * plan.rows * 4);
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
    shared.carries =
        take((backward ? carry_floats(size, plan) : 2) * size.states * round_up(plan.rows, 2) * 4);
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
    workspace.carries =
        take(carry_floats(size, plan) * plan.slice * size.states * round_up(size.channels, 2));
  if (plan.pass == Pass::kForward) return workspace;
  if (plan.kept_steps == 0)
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

}  // namespace linescan
