// Which variants a device can run, and which of them is taken.
#include "linescan/ops/selective_scan/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/device/gpu.h"
#include "linescan/ops/selective_scan/gpu_plan_cost.h"

namespace linescan {
namespace {

using Plan = SelectiveScanGpuPlan;
using Size = SelectiveScanSize;

constexpr int64_t kSharedReserved = 1024;  // that the driver adds to every block's shared memory
// Channels whose carries lie in the workspace at most: kernels count some numbers a channel in 32 bits.
constexpr int64_t kCarriedChannels = int64_t{1} << 28;
constexpr int64_t kWorkspaceLimit = int64_t{1} << 31;  // what grows with a slice of the batch

constexpr WalkersShape walkers_shape(Pass pass) {
  return pass == Pass::kForward ? kWalkersForward : kWalkersBackward;
}

// Registers of a thread and warps of a block, as the kernels' launch bounds have them.
struct Bounds {
  int64_t registers, warps;
};
Bounds bounds_of(const Plan& plan, DType dtype) {
  const bool forward = plan.pass == Pass::kForward;
  if (plan.short_rows) return {forward ? 80 : 128, 1};
  if (plan.one_state) return {forward && dtype != DType::kFloat32 ? 96 : 128, kOneWarps};
  if (plan.channels_last) return {168, kChannelsLastMaxWarps};
  if (plan.state_lanes) return {128, kStateLanesMaxWarps};
  if (plan.walkers)
    return {forward ? 128 : 168, kWalkersMost + 2 * walkers_shape(plan.pass).places};
  if (plan.together > 1) return {256, kScanTogetherWarps};
  return forward ? Bounds{128, kGpuScanMaxWarps} : Bounds{168, 6};
}

// Whether the last tile of a row of one state goes by fewer steps a lane.
bool has_tail(const Size& size, const Plan& plan) {
  if (!plan.one_state || plan.short_rows || plan.pass == Pass::kForward || plan.tiles == 0)
    return false;
  return size.length - (plan.tiles - 1) * tile_of(plan) <= plan.segments * kOneTailItems;
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

// Whether warps may walk that others prepare tiles for.
bool may_be_walkers(const Size& size, Pass pass) {
  return may_be_state_lanes(size) && size.states <= kWalkersMost * walkers_shape(pass).states &&
         !(pass == Pass::kBackward && size.gate);
}

// Such a plan, before fill().
Plan walkers_plan(const Size& size, Pass pass, int64_t places) {
  Plan plan;
  plan.pass = pass;
  plan.walkers = plan.shared_carries = true;
  plan.segments = 1;
  plan.places = places;
  plan.warps = plan.shares = ceil_div(size.states, walkers_shape(pass).states) + 2 * places;
  plan.state_tile = size.states;
  return plan;
}

// Rows that start at multiples of 8 bytes have wide accesses of their own, and lie in shared memory so that
// lanes would meet the same banks.
bool may_be_short_rows(const Size& size) {
  return may_be_one_state(size) && size.length <= kShortLength &&
         size.length * static_cast<int64_t>(size_of(size.dtype)) % 8 != 0;
}

// Rows of whole segments that fill most of a warp's lanes; two of them are a multiple of 16 bytes. With float32 devices of 100 KiB
// would have too few warps.
bool may_be_whole_rows(const Size& size) {
  const int64_t lanes = size.length / kWholeItems, two_rows = 2 * size.length * 2;
  return may_be_one_state(size) && size_of(size.dtype) == 2 && size.length % kWholeItems == 0 &&
         lanes >= kWholeFewestLanes && lanes <= kGpuWarp && two_rows % 16 == 0;
}

// How rows of one state are walked forward: by tiles that leave few lanes idle at a row's end and are few themselves; a
// tile costs some steps.
void walk_forward(const Size& size, Plan& plan) {
  constexpr int64_t kTile = 12;
  int64_t least = 0;
  for (const auto& [lanes, items] : kOneForward) {
    const int64_t tiles = ceil_div(std::max<int64_t>(size.length, 1), int64_t{lanes} * items);
    const int64_t cost = tiles * (int64_t{lanes} * items + kTile);
    if (least == 0 || cost < least) least = cost, plan.segments = lanes, plan.items = items;
  }
}

// How rows of one state are walked backward where states are kept, and so how far those are apart: the same for both passes
// and for every device.
Plan one_state_kept(const Size& size) {
  Plan plan;
  plan.one_state = true;
  plan.short_rows = may_be_short_rows(size) && size.batch * size.channels >= kManyRows &&
                    size.channels >= kGpuWarp * size.groups;
  plan.segments = plan.short_rows ? 1 : size.length >= kOneLong ? kGpuWarp : kOneFewLanes;
  plan.items = plan.short_rows ? kShortItems : kOneItems;
  return plan;
}

// How many lanes share a row's tile of steps backward where several states are kept; 0: they are not. As above, a
// function of sizes alone. Longer tiles keep less, and are for rows too few to fill a device without.
int64_t kept_lanes(const Size& size) {
  if (!may_be_state_lanes(size)) return 0;
  const int64_t rows = size.batch * size.channels;
  const int64_t warps =
      std::max<int64_t>(1, size.states / kGpuItems);  // many states are divided among warps
  const bool walkers = may_be_walkers(size, Pass::kBackward) && rows >= kWalkersRows &&
                       rows < kWalkersManyRows && size.states >= kWalkersFewestStates;
  int64_t lanes = 1;
  while (!walkers && lanes < kGpuWarp && rows * warps * lanes < kKeptLanes) lanes *= 2;
  return size.states <= kKeptBytes / 4 * lanes * kGpuItems ? lanes : 0;
}

// Steps from one kept state to the next; 0: none are kept.
int64_t kept_steps_of(const Size& size) {
  if (may_be_whole_rows(size)) return 0;  // such a row starts at its start
  return may_be_one_state(size) ? tile_of(one_state_kept(size)) : kept_lanes(size) * kGpuItems;
}

// Whether the states of a row may be divided among that many warps of a block.
bool may_share(const Size& size, const Plan& plan) {
  if (plan.channels_last && kChunkStates % plan.shares != 0) return false;
  const bool simple = !size.constant_B && !size.constant_C && !size.gate;
  return plan.shares == 1 ||
         (simple && plan.shares <= size.states && plan.warps % plan.shares == 0);
}

// Whether a warp of the general variant backward may walk several states at once.
bool may_go_together(const Size& size, const Plan& plan) {
  const int64_t states = plan.shares * kScanTogether;
  return plan.pass == Pass::kBackward && !plan.many_states && !plan.channels_last &&
         plan.shared_carries && plan.segments <= kScanTogetherLanes && !size.constant_B &&
         !size.constant_C && !size.gate && size.states % states == 0 &&
         plan.state_tile % states == 0;
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
    const double cost = first_kernel_cycles(size, plan, gpu);
    if (best.lanes == 0 || cost < best.cost) best = {lanes, cost};
  }
  return best;
}

}  // namespace

Plan ahead_plan(const Size& size, const Plan& plan) {
  if (plan.one_state && !plan.short_rows && plan.whole_rows == 0) {
    Plan ahead = plan;
    walk_forward(size, ahead);
    ahead.rows = round_up(plan.rows, rows_of_warp(ahead));
    ahead.blocks = ceil_div(size.channels / std::max<int64_t>(size.groups, 1), ahead.rows);
    ahead.tiles = ceil_div(size.length, tile_of(ahead));
    return ahead;
  }
  if (plan.ahead_lanes == 0) return plan;
  const Plan kind = state_lanes_plan(plan.ahead_lanes, kStateLanesMaxWarps);
  Plan ahead = plan;  // tiles, slice and so where the states go remain
  ahead.many_states = ahead.walkers = false;
  ahead.state_lanes = kind.state_lanes, ahead.segments = kind.segments, ahead.warps = kind.warps;
  ahead.shares = kind.shares, ahead.state_tile = kind.state_tile;
  ahead.rows = ahead.warps * rows_of_warp(ahead);
  ahead.blocks = ceil_div(size.channels / std::max<int64_t>(size.groups, 1), ahead.rows);
  ahead.block = ahead.warps * kGpuWarp;
  return ahead;
}

int64_t gpu_kept_states(const Size& size) {
  const int64_t tile = kept_steps_of(size);
  if (tile == 0) return 0;
  return std::max<int64_t>(ceil_div(size.length, tile) - 1, 0) * size.batch * size.channels *
         size.states;
}

std::vector<SelectiveScanGpuPlan> legal_plans(const SelectiveScanSize& size, Pass pass,
                                              const Gpu& gpu) {
  // What a problem costs at least does not depend on the device.
  const SelectiveScanPlan least = plan(size, pass, 1);
  std::vector<Plan> plans;
  const int64_t kept_steps = size.kept_states ? kept_steps_of(size) : 0;
  const int64_t kept_bytes = kept_steps > 0 ? 4 * gpu_kept_states(size) : 0;
  const Ahead ahead = pass == Pass::kBackward && kept_steps == 0 ? best_ahead(size, gpu) : Ahead{};
  const auto consider = [&](Plan& candidate) {
    candidate.kept_steps = kept_steps;
    candidate.kept_bytes = kept_bytes;
    fill(size, gpu, candidate);
    if (!fits(size, candidate, gpu)) return;
    if (kept_steps == 0) {
      // These variants have no first kernel of their own.
      const bool foreign = pass == Pass::kBackward && (candidate.many_states || candidate.walkers);
      if (foreign && ahead.lanes == 0) return;
      const bool by_lanes = foreign || ahead.cost <= first_kernel_cycles(size, candidate, gpu);
      candidate.ahead_lanes = by_lanes ? ahead.lanes : 0;
    }
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
      candidate.items = kShortItems;
      candidate.rows = kGpuWarp;
      consider(candidate);
      candidate.short_rows = false;
    }
    if (pass == Pass::kBackward && may_be_whole_rows(size)) {
      candidate.segments = kGpuWarp;
      candidate.items = kWholeItems;
      candidate.warps = kOneWarps;
      for (const int64_t at_once : {kWholeMostRows, kWholeMostRows / 2}) {
        candidate.whole_rows = at_once;
        // As many rows for each warp; the fewest of those that make as many blocks.
        const int64_t turn = kOneWarps * at_once;
        const int64_t most = round_up(size.channels / std::max<int64_t>(size.groups, 1), turn);
        const int64_t room = gpu.shared_per_block / static_cast<int64_t>(sizeof(float[4]));
        for (candidate.rows = turn; candidate.rows <= std::min(most, room); candidate.rows += turn)
          if (candidate.rows == turn ||
              ceil_div(most, candidate.rows) < ceil_div(most, candidate.rows - turn))
            consider(candidate);
      }
      candidate.whole_rows = 0;
    }
    if (!size.kept_states || !kept.short_rows) {
      candidate.segments = kept.short_rows ? kOneFewLanes : kept.segments;
      candidate.items = kOneItems;
      if (pass == Pass::kForward) walk_forward(size, candidate);
      candidate.warps = kOneWarps;
      const int64_t channels = size.channels / std::max<int64_t>(size.groups, 1);
      const int64_t turn = kOneWarps * rows_of_warp(candidate);
      for (int64_t parts = 1; parts <= 64; ++parts) {
        // Whole turns of a warp, so that a run of short rows starts where the tensor's alignment says.
        candidate.rows =
            round_up(std::max<int64_t>(1, ceil_div(channels, parts)), rows_of_warp(candidate));
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
  if (may_be_walkers(size, pass))
    for (int64_t places = walkers_shape(pass).places; places >= 2; places /= 2) {
      Plan candidate = walkers_plan(size, pass, places);
      if (pass == Pass::kForward || kept_steps == 0 || kept_steps == tile_of(candidate))
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
          if (!shared_carries && size.channels > kCarriedChannels) continue;
          if (kept_steps > 0 && tile_of(candidate) != kept_steps) continue;
          if (!may_share(size, candidate)) continue;
          const int64_t largest = largest_state_tile(size, candidate);
          for (const int64_t half : {1, 2}) {
            const int64_t state_tile = round_up(ceil_div(largest, half), shares);
            const bool fixed = candidate.many_states || candidate.channels_last;
            if (candidate.state_tile == state_tile || (fixed && half > 1)) continue;
            candidate.state_tile = state_tile;
            consider(candidate);
            if (!may_go_together(size, candidate)) continue;
            Plan together = candidate;
            together.together = kScanTogether;
            consider(together);
          }
        }
  return plans;
}

void check_gpu_counts(const SelectiveScanSize& size) {
  constexpr int64_t kLimit = int64_t{1} << 31;  // counted in 32 bits
  for (const auto& [name, number] :
       {std::pair{"batch", size.batch}, {"channels", size.channels}, {"states", size.states}})
    if (number >= kLimit)
      throw_error<Unsupported>("selective_scan: {} is {}, GPUs take less than {}", name, number,
                               kLimit);
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
    return expected_cycles(size, a, gpu) < expected_cycles(size, b, gpu);
  });
}

std::string variant_of(const SelectiveScanGpuPlan& plan) {
  if (plan.short_rows) return "one state, short rows: a lane walks a row";
  if (plan.whole_rows > 0)
    return fmt::format("one state, whole rows: a warp has a row, {} steps a lane, {} come at once",
                       plan.items, plan.whole_rows);
  if (plan.one_state)
    return fmt::format("one state: {} lanes of {} steps along a row, rows in turn", plan.segments,
                       plan.items);
  if (plan.many_states) return "many states: a lane walks a row, warps divide its states";
  if (plan.channels_last) return "channels last: a lane walks a row, neighbours in memory";
  if (plan.state_lanes)
    return fmt::format("state lanes: {} lanes divide a row's states", plan.segments);
  if (plan.walkers)
    return fmt::format("walkers: {} warps walk {} states each, {} prepare and finish",
                       plan.warps - 2 * plan.places, walkers_shape(plan.pass).states,
                       2 * plan.places);
  if (plan.segments == 1) return "serial: a lane walks a row";
  return fmt::format("segmented: {} lanes share a row", plan.segments);
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
      name_of(plan.pass), variant_of(plan), plan.grid, plan.block, plan.rows,
      plan.walkers ? plan.warps - 2 * plan.places : plan.shares, plan.blocks, tile, plan.tiles,
      plan.tail ? ", the last one short" : "", plan.state_tile,
      plan.shared_carries ? "shared memory" : "the workspace", plan.shared_bytes, plan.shared_limit,
      plan.blocks_per_multiprocessor, plan.warps_per_multiprocessor);
  if (plan.together > 1)
    text += fmt::format("  at once         {} states of a warp\n", plan.together);
  if (plan.kept_steps > 0)
    text += fmt::format("  kept            {} bytes between the passes: states every {} steps\n",
                        plan.kept_bytes, plan.kept_steps);
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
