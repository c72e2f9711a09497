// How ss2d will run on a GPU: a plain value, made by a pure function from sizes and a description of
// the device, printable without either.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linescan/base/math.h"
#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"
#include "linescan/ops/ss2d/plan.h"

namespace linescan {

struct Gpu;

// A block of threads owns 16 channels of one image on one tile of the plane, whose results it sums in
// shared memory; its warps take consecutive chunks of a route. Fixed by the kernels:
inline constexpr int kGpuChannels = 16;     // channels of a block
inline constexpr int kGpuSegments = 4;      // neighbouring lanes that share a chunk
inline constexpr int kGpuSegmentSteps = 7;  // odd: lanes then meet different banks
inline constexpr int kGpuChunk = kGpuSegments * kGpuSegmentSteps;
inline constexpr int kGpuLineSteps = 8;  // of a segment on planes of several tiles
// Warps of a multiprocessor:
inline constexpr int kGpuMaxWarps = 16;      // forward: 128 registers a thread
inline constexpr int kGpuBackwardWarps = 8;  // backward, general, lines or pairs of states: 255
inline constexpr int kGpuPackedWarps = 12;   // packed, one tile, backward or of states: 168
// Where a lane walks an image (packed_images_forward.cu): blocks of a multiprocessor, warps of a block, and how far apart the images
// of a warp are. With two, and an odd number of pixels, records of neighbouring images and steps are in different banks of the cache.
inline constexpr int kGpuImageBlocks = 3;
inline constexpr int kGpuImageWarps = 4;
inline constexpr int kGpuImageDistance = 2;
// Blocks of several warps of a multiprocessor, of the packed backward kernel on one tile, see ChainLink in gpu_packed.cuh.
inline constexpr int kGpuChains = 4;
static_assert(kGpuPackedWarps <= 15);
// Eights of numbers that a record of the packed kernels has at most; and numbers up to which the backward pass
// multiplies the gradient of delta on the chip instead of storing it: on planes of several tiles of a record, with several
// states of its dts.
inline constexpr int kGpuMostHalves = 9;
inline constexpr int kGpuOnChipNumbers = 8;
// And that it has where sums are complete with their chunks (Ss2dGpuPlan::sums_chunks): there are no kernels for more.
inline constexpr int kGpuChunkNumbers = 32;
// Eights of dts in a record of several states (Ss2dGpuPlan::walks_states).
inline constexpr int kGpuStatesEights = 6;
// Up to here there are kernels for every number of eights, above for every second, from the most down: 5, 7, 9, and 6 of dts. The
// published networks have no others.
inline constexpr int kGpuExactHalves = 4;
static_assert(kGpuChunkNumbers <= 8 * kGpuExactHalves);
// Whether there are for so many: counted down from the most.
constexpr bool have_kernels(int64_t halves, int64_t most) {
  return halves <= kGpuExactHalves || (most - halves) % 2 == 0;
}
inline constexpr int kGpuMaxRoutes = 1024;  // their codes travel as kernel arguments

// Places between rows of a tile's sums in shared memory. Against bank conflicts, on planes of one tile: four lanes, seven places apart in a row
// or a column or in neighbouring ones, are to have different remainders by four.
constexpr int64_t gpu_sum_pitch(int64_t height, int64_t width) {
  const auto two_segments = [](int64_t steps) {
    return steps > kGpuSegmentSteps && steps <= 2 * kGpuSegmentSteps;
  };
  return two_segments(height) && two_segments(width) ? (width + 1) / 4 * 4 + 2 : width | 1;
}

// Whether a StateTable has bfloat16 numbers, two in the place of a float: float16 has no room for all that states may become.
constexpr bool gpu_keeps_halves(const Ss2dSize& size) {
  return size.states > 1 && size.dtype == DType::kBFloat16;
}

// Floats of workspace for each state that enters a piece: the piece's effect, and the state.
inline constexpr int kGpuPieceFloats = 3;

struct Ss2dGpuPlan {
  static constexpr const char* kOperator = "ss2d";

  Pass pass = Pass::kForward;
  int64_t tile_height = 0, tile_width = 0;  // of the plane, what one block sums in shared memory
  int64_t tile_rows = 0, tile_columns = 0;  // tiles of a plane; 1 x 1: no states cross tiles
  int64_t channel_groups = 0;
  int64_t chunks = 0;   // of a route in a tile
  int64_t pieces = 0;   // lines cut by tile borders, of the route that has most; 0 with one tile
  bool packed = false;  // half data and one state: packed kernels, if strides and sizes are even
  // One tile, half data, an even number of states, even sizes, channels-last: a block meets all states of a chunk before the
  // next one (packed_states_forward.cu, packed_states_backward.cu), if addresses are even and no route starts anew.
  bool walks_states = false;
  // Packed, forward, small planes of one tile: a lane walks an image (packed_images_forward.cu).
  bool walks_images = false;
  // Packed, one route, one tile, several warps a block: a sum is complete with its chunk, and a block has room for its warps'
  // chunks instead of all places of the tile.
  bool sums_chunks = false;
  // Backward, of a number of the result's gradient: the packed kernels of one state take none that are wider.
  int64_t gradient_bytes = 0;
  // Several tiles that fill the device, sides that are multiples of eight, up to eight numbers a record, sixteens of channels, up to four
  // routes; backward with kept states and a gradient of x's type: a warp works on a cell (packed_cells_forward.cu, packed_cells_backward.cu), if
  // tensors can be read sixteen bytes at a time; else on lines.
  bool cells = false;
  bool shared_carries = true;  // states from round to round in shared memory, else in the workspace
  bool kept = false;           // the problem has room for states, of tiles like these
  bool stores_delta =
      false;  // the packed backward kernel stores delta's gradient, see gpu_delta_gradient.cuh
  bool at_once = false;                       // it is read once for both products
  int product_side = 0, product_columns = 0;  // of their tiles, see GpuProducts
  int64_t delta_parts =
      0;  // of the pixels of a slice, each with sums of its own for dt_weight's gradient
  int64_t pieces_slice = 0;     // images whose pieces' states are found at once
  int64_t slice = 0;            // images that one launch of the scan works through
  int64_t grid = 0, block = 0;  // of one full slice; threads
  int64_t shared_bytes = 0, shared_limit = 0;
  // Of the general kernels, which run in the packed ones' place, and of those for lines.
  int64_t general_block = 0, general_shared_bytes = 0;
  int64_t blocks_per_multiprocessor = 0, warps_per_multiprocessor = 0;
  int64_t workspace_bytes = 0;

  int64_t bytes = 0;         // every input read once, every output written once
  int64_t exponentials = 0;  // one a state, two for the softplus, for each pixel, channel and route

  int segment_steps() const { return pieces > 0 ? kGpuLineSteps : kGpuSegmentSteps; }
  // Rows of a StateTable for a block and route: chunks, or with one state on planes of several tiles, where a lane may
  // walk a line, their segments.
  int64_t state_rows(const Ss2dSize& size) const {
    return pieces > 0 && size.states == 1 ? chunks * kGpuSegments : chunks;
  }
  // Floats of an image: of the StateTable, and for one that enters each piece.
  int64_t table_floats(const Ss2dSize& size) const {
    const int64_t numbers =
        blocks_an_image() * size.routes * state_rows(size) * size.states * kGpuChannels;
    return gpu_keeps_halves(size) ? numbers / 2 : numbers;
  }
  int64_t piece_floats(const Ss2dSize& size) const {
    return size.routes * pieces * size.states * size.channels;
  }
  int64_t blocks_an_image() const { return channel_groups * tile_rows * tile_columns; }
  // Of packed_images_forward.cu.
  int64_t blocks_of_images(int64_t images) const {
    return ceil_div(channel_groups, int64_t{kGpuImageWarps}) * kGpuImageDistance *
           ceil_div(images, int64_t{kGpuImageDistance * kGpuSegments});
  }
  bool operator==(const Ss2dGpuPlan&) const = default;
};

// What the warps of a block hand states over in, see Relay in gpu_recurrence.cuh: the transfers of
// their chunks, and what goes from round to round, which grows with the states.
constexpr int64_t gpu_transfer_bytes(int64_t warps) {
  return kGpuChannels * 2 * warps * 2 * static_cast<int64_t>(sizeof(float));
}
inline constexpr int64_t kGpuCarryFloats = kGpuChannels * 2;  // for each state
// Where several states are walked, pair by pair: warps of a multiprocessor, and shared memory for the rates of all routes and
// for each warp and state, a place, a signal and, backward, the gradient of the rate.
constexpr int gpu_states_warps(Pass pass) {
  return pass == Pass::kForward ? kGpuPackedWarps : kGpuBackwardWarps;
}
constexpr int64_t gpu_states_bytes(int64_t routes, int64_t states, int64_t warps, Pass pass) {
  const int64_t of_state = kGpuChannels * static_cast<int64_t>(sizeof(float));
  const int64_t place = of_state + static_cast<int64_t>(sizeof(uint64_t));
  return routes * states * of_state +
         warps * states * (place + (pass == Pass::kBackward ? of_state : 0));
}
// The packed kernels': a state and a signal for each warp, see StateChain in gpu_packed.cuh.
constexpr int64_t gpu_chain_bytes(int64_t warps) {
  return warps * (kGpuChannels * static_cast<int64_t>(sizeof(float)) +
                  static_cast<int64_t>(sizeof(uint64_t)));
}
// And on one tile, for each warp, the next chunk of x and, backward, of the result's gradient: of each so much
// (gpu_plane_stage.cuh).
constexpr int64_t gpu_stage_bytes(int64_t element_bytes) {
  return kGpuChunk * kGpuChannels * element_bytes;
}

// On planes of several tiles, what a block's warps begin routes with, so many at a time, see gpu_line_routes.cuh: of each the distances
// and first places, and for every lane its operands of the products with records of so many numbers, biases and rates. The packed
// kernels take no longer records.
inline constexpr int kGpuLineRoutes = 4;
inline constexpr int kGpuLineRouteBytes = 112;
constexpr int64_t gpu_line_route_bytes(int64_t record) {
  int64_t halves = (record + 7) / 8;
  if (halves > kGpuMostHalves) return 0;
  while (!have_kernels(halves, kGpuMostHalves)) ++halves;
  const int64_t words = 4 * ((halves + 1) / 2) + 4;
  return kGpuLineRoutes * (kGpuLineRouteBytes + 32 * words * static_cast<int64_t>(sizeof(float)));
}

inline constexpr int kGpuChunkSums =
    kGpuChannels * kGpuChunk;  // floats of a warp, see SumWalk there

// Planes of several tiles in cells (Ss2dGpuPlan::cells, gpu_cells.cuh): pixels a side, warps of a block, blocks of a multiprocessor (80 and 168
// registers), routes that a warp has room for, and steps of the longest line. Lines are walked by one warp from end to end.
inline constexpr int kCellSide = kGpuLineSteps;
inline constexpr int kCellWarps = 4, kCellBlocks = 6, kCellBackwardBlocks = 3;
inline constexpr int kCellRoutes = 4, kCellLongestLine = 512;
// In shared memory, bytes: from pixel to pixel and row to row of a cell of a tensor, of its sums and of a route's records, whose rows are apart
// by banks that lanes of a row leave to each other; of what a route begins with, for the block and for its lanes; and of a route's sums for
// parameters of all lanes.
inline constexpr int kCellPixel = kGpuChannels * 2, kCellRow = kCellSide * kCellPixel + 32;
inline constexpr int kCellSumPixel = kGpuChannels * 4, kCellSumRow = kCellSide * kCellSumPixel + 32;
inline constexpr int kCellRecordPixel = kGpuOnChipNumbers * 2;
inline constexpr int kCellRecordRow = kCellSide * kCellRecordPixel + 16;
inline constexpr int kCellBytes = kCellSide * kCellRow, kCellSumBytes = kCellSide * kCellSumRow;
inline constexpr int kCellRecordBytes = kCellSide * kCellRecordRow;
inline constexpr int kCellRouteBytes = 4 * 32 + 3 * 16, kCellLaneBytes = 2 * 16 * 32;
inline constexpr int kCellParameterBytes = 2 * 16 * 32;
constexpr int64_t gpu_cell_bytes(int64_t routes, Pass pass) {
  const bool backward = pass == Pass::kBackward;
  const int64_t of_route = backward ? kCellRecordBytes + kCellParameterBytes : 0;
  const int64_t of_warp = (backward ? 2 : 1) * kCellBytes + kCellSumBytes + routes * of_route;
  return routes * (kCellRouteBytes + kCellLaneBytes) + kCellWarps * of_warp;
}

// The parts of a pass's workspace, in floats: of the pieces, for each image of a slice of theirs; of the scan,
// likewise, but for `weights`. They lie one after another in this order.
struct Ss2dGpuWorkspace {
  int64_t entering = 0, returning = 0, segments = 0;
  int64_t carries = 0, starts = 0;
  // What blocks leave for the sums of gradients, of the records and of the parameters. If the packed kernel is
  // expected: what it leaves, and what the general one does, which runs where strides or sizes are odd.
  int64_t records = 0, general_records = 0;
  int64_t parameters = 0, general_parameters = 0;
  int64_t weights = 0;  // of a slice: the parts of dt_weight's gradient where delta's is stored

  int64_t of_pieces() const { return entering + returning + segments; }
  int64_t an_image() const { return carries + starts + records + parameters; }
  // Of so many images; the general kernel has room for one at least.
  int64_t records_of(int64_t images) const { return std::max(images * records, general_records); }
  int64_t parameters_of(int64_t images) const {
    return std::max(images * parameters + weights, general_parameters);
  }
  // How many of them the general kernel has room for at once.
  int64_t general_slice(int64_t images) const;
};

// How many numbers Ss2dProblem::states holds: the states of StateTable, of the whole batch, a function of sizes
// alone, so that shapes do not depend on the device. 0 with several states where selective_scan takes over. A device
// that needs smaller tiles leaves them unused.
int64_t gpu_kept_states(const Ss2dSize& size);

Ss2dGpuWorkspace gpu_workspace(const Ss2dSize& size, const Ss2dGpuPlan& plan);

// Throws Unsupported for numbers that the kernels cannot count: of routes, of pixels.
void check_gpu_counts(const Ss2dSize& size);

// Throws Unsupported if not even the smallest tile fits the device's shared memory.
Ss2dGpuPlan plan(const Ss2dSize& size, Pass pass, const Gpu& gpu);

// How it goes about it, in a few words.
std::string variant_of(const Ss2dGpuPlan& plan);
std::string to_string(const Ss2dGpuPlan& plan);

}  // namespace linescan
