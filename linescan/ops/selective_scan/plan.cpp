#include "linescan/ops/selective_scan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "linescan/base/math.h"
#include "linescan/ops/scan_tiling.h"

namespace linescan {

SelectiveScanPlan plan(const SelectiveScanSize& size, Pass pass, int64_t threads) {
  SelectiveScanPlan plan;
  plan.pass = pass;
  const int64_t element = size_of(accumulator_of(size.dtype));
  const int64_t group_channels = size.channels / std::max<int64_t>(size.groups, 1);
  plan.channel_block = kChannelBlock;
  plan.time_tile = pass == Pass::kForward ? kForwardTile : backward_tile(size.length, size.states);
  plan.blocks = ceil_div(group_channels, plan.channel_block);

  const int64_t tile = plan.time_tile * kChannelBlock, per_state = size.states * kChannelBlock;
  const int64_t factors = 2 * size.states * plan.time_tile;  // B and C of one tile
  int64_t shared = 0;                                        // workspace that slots do not own
  if (pass == Pass::kForward) {
    plan.tasks = size.batch * size.groups * plan.blocks;
    plan.scratch_bytes = element * (4 * tile + 4 * per_state + factors + 2 * kChannelBlock);
  } else {
    const TaskSplit split = split_backward(size.batch, size.groups, plan.blocks);
    plan.batch_chunks = split.batch_chunks;
    plan.partitions = split.partitions;
    plan.tasks = split.batch_chunks * size.groups * split.partitions;
    const int64_t tiles = ceil_div(size.length, plan.time_tile);
    plan.scratch_bytes = element * (9 * tile + 4 * (plan.time_tile + 1) * kChannelBlock +
                                    (8 + tiles) * per_state + factors + 4 * kChannelBlock);
    const int64_t factor_sums =
        size.batch * size.groups * plan.partitions * size.states * size.length;
    const int64_t parameter_sums = plan.batch_chunks * size.channels * (3 * size.states + 2);
    shared = element * (2 * factor_sums + parameter_sums);
  }
  plan.scratch_bytes = round_up(plan.scratch_bytes, kScratchAlignment) + kScratchSlack;
  plan.slots = std::max<int64_t>(1, std::min(plan.tasks, threads));
  plan.workspace_bytes =
      plan.slots * plan.scratch_bytes + round_up(shared, kScratchAlignment) + kScratchSlack;

  const int64_t elements = size.batch * size.channels * size.length;
  const int64_t data = size_of(size.dtype), out = size_of(size.out_dtype);
  const int64_t factor_B = size.constant_B ? size.channels * size.states
                                           : size.batch * size.groups * size.states * size.length;
  const int64_t factor_C = size.constant_C ? size.channels * size.states
                                           : size.batch * size.groups * size.states * size.length;
  const int64_t inputs = elements * (size.gate ? 3 : 2) * data + (factor_B + factor_C) * data;
  plan.exponentials = elements * (size.states + (size.softplus ? 2 : 0) + (size.gate ? 1 : 0));
  plan.bytes = inputs + elements * out + size.batch * size.channels * size.states * element;
  // The backward pass reads the inputs and the output's gradient and writes one gradient an input.
  if (pass == Pass::kBackward) plan.bytes = 2 * inputs + elements * out;
  return plan;
}

std::string to_string(const SelectiveScanPlan& plan) {
  std::string text = fmt::format(
      "selective_scan {} on the CPU\n"
      "  channel block   {}   channels that one task scans side by side\n"
      "  time tile       {}   steps held in cache\n"
      "  tasks           {}   in {} slots\n",
      name_of(plan.pass), plan.channel_block, plan.time_tile, plan.tasks, plan.slots);
  if (plan.pass == Pass::kBackward)
    text += fmt::format("  partial sums    {} parts of the batch, {} parts of each group\n",
                        plan.batch_chunks, plan.partitions);
  text += fmt::format(
      "  workspace       {} bytes ({} a slot)\n"
      "  bytes           {}\n"
      "  exponentials    {}",
      plan.workspace_bytes, plan.scratch_bytes, plan.bytes, plan.exponentials);
  return text;
}

}  // namespace linescan
