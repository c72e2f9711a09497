#include "linescan/ops/ss2d/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/math.h"
#include "linescan/ops/scan_tiling.h"

namespace linescan {

Ss2dPlan plan(const Ss2dSize& size, Pass pass, int64_t threads) {
  Ss2dPlan plan;
  plan.pass = pass;
  const int64_t element = size_of(accumulator_of(size.dtype));
  plan.channel_block = kChannelBlock;
  plan.time_tile =
      pass == Pass::kForward ? kForwardTile : backward_tile(size.pixels(), size.states);
  plan.blocks = ceil_div(size.channels, plan.channel_block);
  plan.stage_planes = !size.channels_last;

  const int64_t tile = plan.time_tile * kChannelBlock, per_state = size.states * kChannelBlock;
  const int64_t plane = size.pixels() * kChannelBlock;
  const int64_t records = plan.time_tile * round_up(size.record(), kRecordAlignment);
  const int64_t dt_weight = size.rank * kChannelBlock;
  int64_t shared = 0;  // workspace that slots do not own
  if (pass == Pass::kForward) {
    plan.tasks = size.batch * plan.blocks;
    const int64_t planes = plan.stage_planes ? 2 : 1;  // the sum over routes, x
    plan.scratch_bytes = element * (planes * plane + 3 * tile + records + 2 * per_state +
                                    dt_weight + 2 * kChannelBlock);
  } else {
    const TaskSplit split = split_backward(size.batch, 1, plan.blocks);
    plan.batch_chunks = split.batch_chunks;
    plan.partitions = split.partitions;
    plan.tasks = split.batch_chunks * split.partitions;
    const int64_t planes = plan.stage_planes ? 3 : 1;  // the gradient of x; x and the upstream one
    const int64_t tiles = ceil_div(size.pixels(), plan.time_tile);
    plan.scratch_bytes =
        element * (planes * plane + 6 * tile + 4 * (plan.time_tile + 1) * kChannelBlock +
                   2 * records + (4 + tiles) * per_state + 2 * dt_weight + 4 * kChannelBlock);
    const int64_t parameters = size.routes * size.channels * (size.states + size.rank + 2);
    const int64_t projection = size.batch * size.pixels() * size.routes * size.record();
    shared = element * (plan.batch_chunks * parameters + plan.partitions * projection);
  }
  plan.scratch_bytes = round_up(plan.scratch_bytes, kScratchAlignment) + kScratchSlack;
  plan.slots = std::max<int64_t>(1, std::min(plan.tasks, threads));
  plan.workspace_bytes =
      plan.slots * plan.scratch_bytes + round_up(shared, kScratchAlignment) + kScratchSlack;

  const int64_t elements = size.batch * size.channels * size.pixels();
  const int64_t data = size_of(size.dtype), out = size_of(size.out_dtype);
  const int64_t inputs =
      data * (elements + size.batch * size.pixels() * size.routes * size.record()) +
      element * size.routes * size.channels * (size.states + size.rank + 2);
  plan.exponentials = elements * size.routes * (size.states + 2);
  plan.bytes = (pass == Pass::kForward ? 1 : 2) * inputs + elements * out;
  return plan;
}

std::string to_string(const Ss2dPlan& plan) {
  std::string text = fmt::format(
      "ss2d {} on the CPU\n"
      "  channel block   {}   channels that one task scans side by side\n"
      "  time tile       {}   steps held in cache\n"
      "  planes          {}\n"
      "  tasks           {}   in {} slots\n",
      name_of(plan.pass), plan.channel_block, plan.time_tile,
      plan.stage_planes ? "turned to channels-last in scratch, once" : "read where they lie",
      plan.tasks, plan.slots);
  if (plan.pass == Pass::kBackward)
    text += fmt::format("  partial sums    {} parts of the batch, {} parts of the channels\n",
                        plan.batch_chunks, plan.partitions);
  text += fmt::format(
      "  workspace       {} bytes ({} a slot)\n"
      "  bytes           {}\n"
      "  exponentials    {}",
      plan.workspace_bytes, plan.scratch_bytes, plan.bytes, plan.exponentials);
  return text;
}

}  // namespace linescan
