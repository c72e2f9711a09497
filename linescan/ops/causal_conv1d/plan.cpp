#include "linescan/ops/causal_conv1d/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/math.h"
#include "linescan/ops/scan_tiling.h"

namespace linescan {
namespace {

// Ranges of tiles: enough for the threads of a large machine, few enough that their sums are small.
constexpr int64_t kEnoughTasks = 64;
// Waking a second thread takes microseconds, in which one convolves so many numbers.
constexpr int64_t kWorthAThread = 16384;

}  // namespace

CausalConv1dPlan plan(const CausalConv1dSize& size, Pass pass, int64_t threads) {
  const int64_t element = size_of(accumulator_of(size.dtype)), data = size_of(size.dtype);
  CausalConv1dPlan plan;
  plan.pass = pass;
  plan.channel_block = kChannelBlock;
  plan.time_tile = kForwardTile;
  plan.blocks = ceil_div(size.channels, kChannelBlock);
  plan.tiles = ceil_div(size.length, plan.time_tile);
  plan.parts =
      std::min(size.batch * plan.tiles, ceil_div(kEnoughTasks, std::max<int64_t>(1, plan.blocks)));
  plan.tasks = plan.parts * plan.blocks;

  // Two tiles forward; three with the neighbours on both sides and the sums of a task backward; and
  // in both the weights and the bias.
  const int64_t tile = (plan.time_tile + 2 * size.width) * kChannelBlock;
  const int64_t parameters = (size.width + 1) * kChannelBlock;
  const bool back = pass == Pass::kBackward;
  plan.scratch_bytes = element * (back ? 4 * tile + 2 * parameters : 2 * tile + parameters);
  plan.scratch_bytes = round_up(plan.scratch_bytes, kScratchAlignment) + kScratchSlack;
  const int64_t numbers = size.batch * size.length * size.channels;
  plan.slots = std::clamp<int64_t>(std::min(plan.tasks, numbers / kWorthAThread), 1, threads);
  // Without a token the sums are zeros, which need a place as well.
  const int64_t sums =
      back ? element * std::max<int64_t>(1, plan.parts) * (size.width + 1) * size.channels : 0;
  plan.workspace_bytes =
      plan.slots * plan.scratch_bytes + round_up(sums, kScratchAlignment) + kScratchSlack;

  plan.bytes =
      (back ? 3 : 2) * numbers * data + (back ? 2 : 1) * element * (size.width + 1) * size.channels;
  plan.exponentials = size.silu ? numbers : 0;
  return plan;
}

std::string to_string(const CausalConv1dPlan& plan) {
  return fmt::format(
      "causal_conv1d {} on the CPU\n"
      "  channel block   {}   channels that one task convolves side by side\n"
      "  time tile       {}   tokens held in cache\n"
      "  tasks           {}   {} ranges of tokens x {} blocks, in {} slots\n"
      "  workspace       {} bytes ({} a slot)\n"
      "  bytes           {}\n"
      "  exponentials    {}",
      name_of(plan.pass), plan.channel_block, plan.time_tile, plan.tasks, plan.parts, plan.blocks,
      plan.slots, plan.workspace_bytes, plan.scratch_bytes, plan.bytes, plan.exponentials);
}

}  // namespace linescan
