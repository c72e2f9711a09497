// How selective_scan will run on a GPU: a plain value, made by a pure function from sizes and a
// description of the device, printable without either.
#pragma once

#include <cstdint>
#include <vector>

#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"
#include "linescan/ops/selective_scan/plan.h"

namespace linescan {

struct Gpu;

// Steps that one lane keeps in registers: five arrays of them in the backward pass, beside two for the
// one state at hand, are 112 of the 168 registers that let twelve warps share a multiprocessor.
inline constexpr int kGpuItems = 16;
inline constexpr int kGpuScanMaxWarps = 8;  // of a block
inline constexpr int kGpuWarp = 32;         // lanes
// The general variant backward: states that are walked at once where warps are few, by rows of how many lanes at most (with all
// 32 a chunk has no two states), and those warps of a block.
inline constexpr int kScanTogether = 2;
inline constexpr int kScanTogetherLanes = 16;
inline constexpr int kScanTogetherWarps = 4;
inline constexpr int kGpuConstantSegments = 4;  // the only variant with constant B or C
// The variant for one state: lanes lie along the length, a warp meets its block's rows in turn.
inline constexpr int kOneWarps = 4;  // of a block
// Backward: steps of a lane, in a last tile that needs no more (plan.tail) fewer; lanes of a row, all of a warp from
// kOneLong steps on. States are kept that far apart.
inline constexpr int kOneItems = 8;
inline constexpr int kOneTailItems = 2;
inline constexpr int kOneFewLanes = 8;
inline constexpr int kOneLong = 256;
// Forward: lanes of a row and steps of a lane that the kernel is compiled for, turns whose rows are under way or at
// work, and blocks of a multiprocessor that its registers are bounded for, with half data and with float32.
struct LanesAndItems {
  int lanes, items;
};
inline constexpr LanesAndItems kOneForward[] = {{32, 16}, {32, 14}, {16, 14}, {8, 16}, {4, 16}};
inline constexpr int kOneAhead = 3;
inline constexpr int kOneHalfBlocks = 5;
inline constexpr int kOneFloatBlocks = 4;
// Its form for many short rows at odd addresses: a lane walks a row, a block is a warp. Steps of a tile (seven
// divides the planes of 224-pixel networks), floats from a tile's B or C to the next one's, the longest row, the
// fewest rows where states are kept, and warps of a multiprocessor that the kernels' registers are bounded for.
inline constexpr int kShortItems = 7;
inline constexpr int kShortPitch = 8;
inline constexpr int kShortLength = 64;
inline constexpr int64_t kManyRows = 32768;
inline constexpr int kShortForwardWarps = 24;
inline constexpr int kShortBackwardWarps = 16;
// Its form for rows that a warp has as a whole, backward: steps of a lane, the fewest lanes that have some, and the most rows
// that come to shared memory at once.
inline constexpr int kWholeItems = 7;
inline constexpr int kWholeFewestLanes = 24;
inline constexpr int kWholeMostRows = 4;
// The backward variant for several states: how much of B and C a warp brings at once, as floats.
inline constexpr int kManyBatchFloats = 16 * kGpuItems;
// Where several states are kept, as many lanes share a row backward as make kKeptLanes of all rows, or all of a warp. A
// row counts once for every 16 states, which are divided among warps. And the most bytes that are kept for a step of a row.
inline constexpr int64_t kKeptLanes = 32768;
inline constexpr int64_t kKeptBytes = 16;
// The variant whose lanes divide a row's states: the most lanes of a row and warps of a block, and how many
// warps of a multiprocessor its registers are bounded for.
inline constexpr int kStateLanesMost = 8;
inline constexpr int kStateLanesMaxWarps = 4;
inline constexpr int kStateLanesWarps = 16;
// The variant whose warps have a task each: the most walkers of a block, states of a walker's lane and the most places for
// tiles in shared memory (a power of two), each of which two other warps fill and empty, and floats from one state's B and C to
// the next one's. Two places backward, which 16 states and 99 KiB allow.
inline constexpr int kWalkersMost = 8;
struct WalkersShape {
  int states, places;
};
inline constexpr WalkersShape kWalkersForward = {4, 4}, kWalkersBackward = {2, 2};
inline constexpr int kWalkersPitch = 2 * kGpuItems;
// Where states are kept every tile of it, so that it can go backward from them: rows, too many for lanes along the length to be as
// fast, too few to fill a device with one lane each, and states.
inline constexpr int64_t kWalkersRows = 3072, kWalkersManyRows = 16384, kWalkersFewestStates = 8;
// State lanes and several states with channels side by side: states whose B and C are in shared
// memory at once, floats from one state's B and C to the next one's; the latter alone: floats from one state's
// sums to the next one's, elements of B and C that a thread brings ahead of their tile, and warps of a block.
inline constexpr int kChunkStates = 16;
inline constexpr int kChunkPitch = 2 * kGpuItems + 4;
inline constexpr int kSumPitch = 2 * kGpuItems + 1;
inline constexpr int kChunkAhead = 3;  // all of a chunk from six warps on
inline constexpr int kChannelsLastMaxWarps = 6;

// A row is one (batch, channel). A team of `shares` warps owns 32 / segments rows and walks them in
// tiles of segments * kGpuItems steps: lane = (row, segment of the tile), the same in every warp of
// the team; each of them meets every shares-th state. With state_lanes a tile is kGpuItems steps, and a
// lane's segment says which states are its own. With walkers all warps of a block are one team.
// The rows of a block share batch and group, hence B and C, which are brought to shared memory for state_tile states at a time.
struct SelectiveScanGpuPlan {
  static constexpr const char* kOperator = "selective_scan";

  Pass pass = Pass::kForward;
  bool one_state = false;      // the variant for one state
  bool short_rows = false;     // its form for many short rows
  bool many_states = false;    // backward: a block has a warp's rows and divides their states
  bool channels_last = false;  // several states, neighbouring channels, steps in any order
  bool state_lanes = false;    // forward: lanes that share a row divide its states, not its steps
  bool walkers = false;        // some warps of a block walk, the others prepare and finish
  int64_t whole_rows = 0;      // one state, backward, whole rows: those that a warp brings at once
  int64_t segments = 0;        // lanes that share a row: 1, 2, 4, .. 32
  int64_t items = kGpuItems;   // steps of a lane in a tile
  int64_t shares = 0;          // warps that share rows and divide the states among them
  int64_t warps = 0;           // of a block
  int64_t rows = 0;            // of a block
  int64_t blocks = 0;  // of a (batch, group); backward: parts that the sums for B, C come in
  int64_t state_tile = 0;
  int64_t together = 1;     // backward, general variant: states that a warp walks at once
  int64_t tiles = 0;        // of a row
  int64_t places = 1;       // walkers: tiles in shared memory at once
  bool tail = false;        // one state, backward: fewer steps a lane in the last one
  int64_t slice = 0;        // batch items that one launch works through
  int64_t ahead_lanes = 0;  // backward: a first kernel with state_lanes has them; 0: there is none
  // Steps from one state to the next that the forward pass leaves in SelectiveScanProblem::states and the backward
  // pass reads there: one of the latter's tiles. 0: none.
  int64_t kept_steps = 0;
  int64_t kept_bytes = 0;       // of all of them
  bool shared_carries = false;  // what rows hand from tile to tile: shared memory, or workspace

  int64_t grid = 0, block = 0;  // of the largest launch
  int64_t shared_bytes = 0, shared_limit = 0;
  int64_t blocks_per_multiprocessor = 0, warps_per_multiprocessor = 0;
  int64_t workspace_bytes = 0;

  int64_t bytes = 0;         // every input read once, every output written once
  int64_t exponentials = 0;  // one a state and step, two for a softplus, one for a gate

  bool operator==(const SelectiveScanGpuPlan&) const = default;
};

// All plans that the device can run, for whoever wants to measure them.
std::vector<SelectiveScanGpuPlan> legal_plans(const SelectiveScanSize& size, Pass pass,
                                              const Gpu& gpu);

// Throws Unsupported for sizes that the kernels cannot count.
void check_gpu_counts(const SelectiveScanSize& size);

// The one that is expected to take least time. Throws Unsupported if the device's shared memory is
// below what the smallest plan needs.
SelectiveScanGpuPlan plan(const SelectiveScanSize& size, Pass pass, const Gpu& gpu);

// How it goes about it, in a few words.
std::string variant_of(const SelectiveScanGpuPlan& plan);
std::string to_string(const SelectiveScanGpuPlan& plan);

// ---- What kernels and plan agree on -------------------------------------------------------------

// Where things lie in a block's shared memory, in bytes; -1: not there.
struct SelectiveScanShared {
  int64_t sequence[4] = {
      -1, -1, -1,
      -1};  // u, delta, z, gradient of out: [2, teams, stage]; of whole rows [warps, 2, stage]
  int64_t stage[4] = {};  // bytes of one team's tile of it
  // [warps, one or two, kGpuExchange] floats: what lanes give each other; what walkers leave: [places, walkers, one or two, ..].
  int64_t exchange = 0;
  // [2, B and C, state_tile, segments * kGpuSegmentPitch] floats; state_lanes: [warps, 2, kChunkStates,
  // kChunkPitch]; walkers: [places, padded states, kWalkersPitch].
  int64_t factors = 0;
  int64_t arrivals = 0;  // of B and C: 16 bytes a thread, one after another
  int64_t arrival_slots = 0;
  // Backward: [teams, B and C, state_tile, segments * kGpuSegmentPitch]; for channels_last
  // [teams, kChunkStates, kSumPitch] floats.
  int64_t sums = -1;
  // channels_last, backward: [warps, kGpuExchange] floats: gradient of out. state_lanes: [warps, dt and dt u,
  // rows of a warp, kGpuSegmentPitch].
  // walkers: [places, dt, dt u and backward the gradient of out, rows, kGpuSegmentPitch].
  int64_t items = -1;
  int64_t states = -1;  // backward: [2, state_tile, rows] floats: states at the tile's start
  // Forward and channels_last [states, rows, carry_floats]; the general variant backward: see BackwardCarries, rows
  // rounded up to even;
  // many states: [states, rows] pairs; state_lanes: [warps, slots, lanes] pairs.
  int64_t carries = -1;
  int64_t bytes = 0;
};
// Floats from one segment's items to the next segment's: 80 bytes apart, lanes that read 16 bytes
// each meet different banks.
inline constexpr int kGpuSegmentPitch = kGpuItems + 4;
// Floats of all lanes' items. A warp's exchange has room for one array of items, for two in teams.
inline constexpr int kGpuExchange = kGpuWarp * kGpuSegmentPitch;
constexpr int exchange_floats(int64_t shares) {
  return shares > 1 ? 2 * kGpuExchange : kGpuExchange;
}

inline int64_t rows_of_warp(const SelectiveScanGpuPlan& plan) { return kGpuWarp / plan.segments; }
// Steps of a tile.
inline int64_t tile_of(const SelectiveScanGpuPlan& plan) {
  if (plan.state_lanes) return kGpuItems;
  return plan.segments * plan.items;
}

// What the backward pass's first kernel is launched with: the plan, or one with state_lanes, or for one state the forward
// pass's tiles. What it says of grid, shared memory and occupancy is still that of the second kernel.
SelectiveScanGpuPlan ahead_plan(const SelectiveScanSize& size, const SelectiveScanGpuPlan& plan);

// `states_only`: of the backward pass's first kernel, which leaves nothing but states.
SelectiveScanShared shared_layout(const SelectiveScanSize& size, const SelectiveScanGpuPlan& plan,
                                  bool states_only);

// The backward pass's workspace, in floats, for one slice where sizes grow with it.
struct SelectiveScanWorkspace {
  int64_t states = 0;  // [tiles - 1, slice, states, channels]: h at the start of tiles 1, 2, ..
  // B, C: [blocks, slice, groups, states, length], for channels_last [.., length, states]; none with
  // one block.
  int64_t sums[2] = {};
  int64_t carries = 0;  // [slice, states, channels, carry_floats], channels rounded up to even
  int64_t rates = 0;    // [states, channels]: A turned round, for many states
  int64_t A = 0, D = 0, bias = 0, constant[2] = {};  // [batch, channels(, states)]
  int64_t floats = 0;
};
SelectiveScanWorkspace workspace_layout(const SelectiveScanSize& size,
                                        const SelectiveScanGpuPlan& plan);

// Numbers that SelectiveScanProblem::states holds, [tiles - 1, batch, states, channels]: h at the start of tiles
// 1, 2, .. A function of the problem alone, so that shapes do not depend on the device. 0 where a backward pass would
// not read them.
int64_t gpu_kept_states(const SelectiveScanSize& size);

// Floats that a row carries from tile to tile for a state, in the general variant and with channels_last.
int64_t carry_floats(const SelectiveScanSize& size, const SelectiveScanGpuPlan& plan);

}  // namespace linescan
