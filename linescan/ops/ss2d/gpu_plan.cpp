#include "linescan/ops/ss2d/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/device/gpu.h"
#include "linescan/ops/ss2d/gpu_products.h"

namespace linescan {
namespace {

constexpr int64_t kPlaceBytes = kGpuChannels * sizeof(float);
constexpr int64_t kReservedBytes = 1024;  // shared memory that the system takes of every block
// The batch is sliced to stay below, or to one wave of blocks, so that what blocks leave is added up while it is in
// the cache; with several tiles less tightly, because fewer images fill the device badly. What comes before the slices of a
// tiled pass is done for as many images at once as stay below as much.
constexpr int64_t kWorkspaceGoal = int64_t{32} << 20;
constexpr int64_t kTiledWorkspaceGoal = int64_t{64} << 20;
// In cells what comes before them is larger, and fewer launches are worth more than its staying in the cache.
constexpr int64_t kCellWorkspaceGoal = int64_t{160} << 20;
// Two waves on planes of one tile with one state, where delta's gradient is stored, as far as they stay below: a launch's start and
// end cost the products more than reading from memory instead of the cache (decision 0050).
constexpr int64_t kDeltaWorkspaceGoal = int64_t{128} << 20;

// Of the largest devices: shared memory of a block, and places of planes that are one tile there. Rows or columns
// of the tiles of larger ones: several blocks a multiprocessor, and lines for all lanes of eight warps.
constexpr int64_t kMostShared = 227 * 1024;
constexpr int64_t kLargestPlane = 3430;
constexpr int64_t kTileSide = 32;
// Of a line in cells, pixels times channels: distances in a tile have 31 bits.
constexpr int64_t kCellMostNumbers = int64_t{1} << 26;
constexpr int64_t kCellFewestBlocks = 2;  // a multiprocessor: their four warps take long alone
constexpr int64_t kFewestPlaces = 4;      // of a tile that is worth a block
constexpr int64_t kFewestWarps = 4;       // of the packed kernels on a plane that is worth one tile

int64_t chunk_count(int64_t height, int64_t width, int64_t steps) {
  const int64_t segments =
      std::max(height * ceil_div(width, steps), width * ceil_div(height, steps));
  return ceil_div(segments, int64_t{kGpuSegments});
}

bool fits_one_tile(const Ss2dSize& size, int64_t places) {
  return size.height * gpu_sum_pitch(size.height, size.width) <= std::min(places, kLargestPlane);
}

// One tile, or near squares, of at most `places` places.
void choose_tiles(Ss2dGpuPlan& plan, const Ss2dSize& size, int64_t places) {
  plan.tile_height = size.height;
  plan.tile_width = size.width;
  if (!fits_one_tile(size, places)) {
    const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(places)));
    int64_t most = std::clamp<int64_t>(side - 1, 1, kTileSide);  // the pitch may add one
    if (most > kGpuLineSteps) most -= most % kGpuLineSteps;
    plan.tile_height = std::min(size.height, most);
    plan.tile_width = std::min(size.width, most);
  }
  // A plane without pixels has no tiles.
  plan.tile_rows = ceil_div(size.height, std::max<int64_t>(1, plan.tile_height));
  plan.tile_columns = ceil_div(size.width, std::max<int64_t>(1, plan.tile_width));
}

void count_pieces(Ss2dGpuPlan& plan, const Ss2dSize& size) {
  if (plan.tile_rows * plan.tile_columns > 1)
    plan.pieces = std::max(size.height * plan.tile_columns, size.width * plan.tile_rows);
  plan.chunks = chunk_count(plan.tile_height, plan.tile_width, plan.segment_steps());
}

// Tiles as states are kept in: those of a device with as much shared memory as any.
Ss2dGpuPlan kept_tiles(const Ss2dSize& size) {
  Ss2dGpuPlan plan;
  plan.channel_groups = ceil_div(size.channels, kGpuChannels);
  choose_tiles(plan, size, kLargestPlane);
  count_pieces(plan, size);
  return plan;
}

// Images of a launch, at most `most` and at most a wave of blocks below it, whose blocks leave the fewest of
// `resident` places empty in the last wave.
int64_t fullest_slice(int64_t blocks_an_image, int64_t resident, int64_t most) {
  const int64_t blocks = std::max<int64_t>(1, blocks_an_image);
  const int64_t places = std::max<int64_t>(1, resident);
  int64_t best = most;
  double best_share = 0;
  for (int64_t images = most; images > 0 && images >= most - ceil_div(places, blocks); --images) {
    const double share = static_cast<double>(images * blocks) /
                         static_cast<double>(round_up(images * blocks, places));
    if (share > best_share) best = images, best_share = share;
  }
  return best;
}

// The number of warps, at most `most`, with the highest score; the lower one of nearly equal ones.
template <class Score>
int64_t best_warps(int64_t most, const Score& score) {
  int64_t best = 1;
  double best_score = 0;
  for (int64_t warps = 1; warps <= most; ++warps) {
    const double here = score(warps);
    if (here > best_score * 1.01) best = warps, best_score = here;
  }
  return best;
}

// Warps that keep a multiprocessor busy with the fewest idle ones in a route's last round. blocks_by_memory: of so many warps.
template <class Blocks>
int64_t choose_warps(int64_t chunks, const Blocks& blocks_by_memory, int64_t most,
                     int64_t most_chains) {
  return best_warps(std::min(most, chunks), [&](int64_t warps) {
    const int64_t chains = warps > 1 ? most_chains : most;
    const int64_t blocks = std::min({blocks_by_memory(warps), chains, most / warps});
    const double used = static_cast<double>(chunks) / static_cast<double>(round_up(chunks, warps));
    return static_cast<double>(blocks * warps) * used;
  });
}

// Of blocks that are small because a sum is complete with its chunk: at least two, with which `blocks_each` blocks of a
// multiprocessor take the fewest rounds of chunks one after another. Of nearly equal numbers the lowest: a block
// alone has nothing to do while its route begins and ends.
int64_t choose_chunk_warps(int64_t chunks, int64_t blocks_each, int64_t most, int64_t most_chains) {
  return best_warps(std::min(most, chunks), [&](int64_t warps) {
    if (warps == 1) return 0.0;
    const int64_t blocks = std::min(most / warps, most_chains);
    const int64_t rounds = ceil_div(std::max<int64_t>(1, blocks_each), blocks);
    return 1 / static_cast<double>(rounds * ceil_div(chunks, warps));
  });
}

// Of blocks whose lanes walk lines, four lines a warp: warps whose blocks take the least time for a tile.
int64_t choose_line_warps(const Ss2dGpuPlan& plan, int64_t blocks_by_memory, int64_t most) {
  const int64_t h = plan.tile_height, w = plan.tile_width;
  return best_warps(most, [&](int64_t warps) {
    const auto rounds = [warps](int64_t lines, int64_t length) {
      return ceil_div(ceil_div(lines, int64_t{kGpuSegments}), warps) *
             ceil_div(length, int64_t{kGpuLineSteps});
    };
    const int64_t blocks = std::min(blocks_by_memory, most / warps);
    return static_cast<double>(blocks) / static_cast<double>(rounds(h, w) + rounds(w, h));
  });
}

// Shared memory of a block whose lanes walk images: two sums for each lane and place. Such blocks are worth it where there is room for
// all that registers allow, and four for every three multiprocessors.
int64_t image_bytes(const Ss2dSize& size) {
  return 32 * kGpuImageWarps * size.pixels() * 2 * int64_t{sizeof(float)};
}

// Whether the packed kernels of either pass take the problem, if its distances and addresses are even as well.
bool packs(const Ss2dSize& size) {
  return size.states == 1 && size_of(size.dtype) == 2 && size.channels_last && size.rank % 2 == 0 &&
         size.channels % 2 == 0 && size.record() <= 8 * kGpuMostHalves;
}

// Whether the kernels for cells take it, likewise, if states are kept for the backward pass.
bool may_be_cells(const Ss2dSize& size, Pass pass) {
  const bool whole = size.height % kCellSide == 0 && size.width % kCellSide == 0 &&
                     size.channels % kGpuChannels == 0;
  const int64_t line = std::max(size.height, size.width);
  return packs(size) && whole && size.record() <= kGpuOnChipNumbers && size.routes <= kCellRoutes &&
         line <= kCellLongestLine && line * size.channels < kCellMostNumbers &&
         (pass == Pass::kForward || size.out_dtype == size.dtype);
}

// Whether the kernels for several states take it, likewise, if one tile is the whole plane.
bool may_walk_states(const Ss2dSize& size) {
  return size.states > 1 && size.states % 2 == 0 && size_of(size.dtype) == 2 &&
         size.channels_last && size.rank % 2 == 0 && size.rank > 0 && size.channels % 2 == 0 &&
         size.rank <= 8 * kGpuStatesEights;
}

// What goes from round to round in the general kernels, if there is room for it in shared memory: many states leave it to the
// sums.
int64_t shared_carries(const Ss2dSize& size, int64_t shared_bytes) {
  const int64_t carries = kGpuCarryFloats * size.states * static_cast<int64_t>(sizeof(float));
  return carries <= shared_bytes / 8 ? carries : 0;
}
// Shared memory beside the sums of so many warps that walk states, or of the general kernels in their place.
int64_t beside_states(const Ss2dSize& size, Pass pass, int64_t warps, int64_t shared_bytes) {
  return std::max(gpu_transfer_bytes(warps) + shared_carries(size, shared_bytes),
                  gpu_states_bytes(size.routes, size.states, warps, pass));
}
// What that leaves has to be enough for all of the plane in either pass: else, the kernels that need less.
bool walks_states(const Ss2dSize& size, int64_t shared_bytes) {
  if (!may_walk_states(size)) return false;
  const auto beside = [&](Pass pass) {
    return beside_states(size, pass, gpu_states_warps(pass), shared_bytes);
  };
  const int64_t places =
      (shared_bytes - std::max(beside(Pass::kForward), beside(Pass::kBackward))) / kPlaceBytes;
  return places >= kFewestPlaces && fits_one_tile(size, places);
}

const char* kernels_of(const Ss2dGpuPlan& plan) {
  if (plan.cells)
    return "packed: a warp a cell of 8 x 8 pixels where addresses allow\n"
           "                  sixteen bytes at a time; a lane a line where strides\n"
           "                  are even; else general";
  if (plan.packed) return "packed, where sizes and strides are even; else general";
  return plan.walks_states ? "packed for several states where strides are even; else general"
                           : "general";
}

}  // namespace

int64_t Ss2dGpuWorkspace::general_slice(int64_t images) const {
  const auto room = [](int64_t all, int64_t one) { return all / std::max<int64_t>(1, one); };
  return std::clamp<int64_t>(std::min(room(records_of(images), general_records),
                                      room(parameters_of(images), general_parameters)),
                             1, std::max<int64_t>(1, images));
}

int64_t gpu_kept_states(const Ss2dSize& size) {
  const bool keeps = size.states == 1 || walks_states(size, kMostShared);
  return keeps ? size.batch * kept_tiles(size).table_floats(size) : 0;
}

Ss2dGpuWorkspace gpu_workspace(const Ss2dSize& size, const Ss2dGpuPlan& plan) {
  Ss2dGpuWorkspace parts;
  const bool backward = plan.pass == Pass::kBackward;
  // Rounded, so that what lies behind them may be written sixteen bytes at a time.
  const int64_t pieces = round_up(kGpuPieceFloats * plan.piece_floats(size), int64_t{4});
  if (!plan.kept || !backward) parts.entering = pieces;
  if (plan.cells) parts.segments = 2 * size.routes * (size.pixels() / kCellSide) * size.channels;
  if (!plan.shared_carries) parts.carries = plan.blocks_an_image() * kGpuCarryFloats * size.states;
  if (!backward) return parts;
  parts.returning = pieces;
  if (!plan.kept) parts.starts = plan.table_floats(size);
  const int64_t places = plan.channel_groups * size.pixels() * size.routes;
  const int64_t rows = size.routes * size.channels;
  const int64_t warps = std::max(plan.block, plan.general_block) / 32;
  const int64_t parts_an_image = plan.tile_rows * plan.tile_columns * warps;
  parts.general_records = places * size.record();
  parts.general_parameters = parts_an_image * rows * (size.rank + size.states + 2);
  parts.records = parts.general_records;
  parts.parameters = parts.general_parameters;
  // Half numbers: delta's of a block's channels, or those of dts; and B's and C's.
  if (plan.stores_delta || plan.walks_states)
    parts.records = places * ((plan.stores_delta ? kGpuChannels : size.rank) / 2 + size.states);
  else if (packs(size))
    parts.records = ceil_div(parts.general_records, int64_t{2});
  if (plan.stores_delta) {
    parts.parameters = parts_an_image * rows * (size.states + 2);
    parts.weights = plan.delta_parts * rows * size.rank;
  }
  // Rounded for the reason above.
  parts.records = round_up(parts.records, int64_t{4});
  return parts;
}

void check_gpu_counts(const Ss2dSize& size) {
  if (size.routes > kGpuMaxRoutes)
    throw_error<Unsupported>("ss2d: routes has {} routes, GPUs take up to {}", size.routes,
                             kGpuMaxRoutes);
  if (size.pixels() >= int64_t{1} << 31)
    throw_error<Unsupported>("ss2d: x has {} x {} pixels, GPUs take fewer than 2^31", size.height,
                             size.width);
}

Ss2dGpuPlan plan(const Ss2dSize& size, Pass pass, const Gpu& gpu) {
  Ss2dGpuPlan plan;
  plan.pass = pass;
  plan.shared_limit = gpu.shared_per_block;
  plan.channel_groups = ceil_div(size.channels, kGpuChannels);

  const int64_t carried = shared_carries(size, plan.shared_limit);
  plan.shared_carries = carried > 0;
  plan.packed = size.states == 1 && size_of(size.dtype) == 2;
  plan.gradient_bytes = pass == Pass::kBackward ? size_of(size.out_dtype) : 0;
  // Beside the sums: the packed kernels', the general ones', and for either.
  const int64_t stages =
      gpu_stage_bytes(size_of(size.dtype)) + gpu_stage_bytes(plan.gradient_bytes);
  const auto packed_bytes = [&](int64_t warps) {
    if (!plan.packed) return int64_t{0};
    if (plan.pieces > 0) return gpu_line_route_bytes(size.record());
    return warps * stages + gpu_chain_bytes(warps);
  };
  const auto general_bytes = [&](int64_t warps) { return gpu_transfer_bytes(warps) + carried; };
  const auto hand_over = [&](int64_t warps) {
    if (plan.walks_states) return beside_states(size, pass, warps, plan.shared_limit);
    return std::max(general_bytes(warps), packed_bytes(warps));
  };
  plan.walks_states = walks_states(size, plan.shared_limit);
  const auto beside = [&] {  // at least
    if (plan.walks_states) return hand_over(gpu_states_warps(pass));
    return std::max(general_bytes(kGpuMaxWarps), packed_bytes(std::min(kFewestWarps, plan.chunks)));
  };
  const auto places_left = [&] { return (plan.shared_limit - beside()) / kPlaceBytes; };
  int64_t places = places_left(), sums = 0;
  do {
    if (places < kFewestPlaces)
      throw_error<Unsupported>("ss2d: a block needs {} bytes of shared memory, {} has {}",
                               beside() + kFewestPlaces * kPlaceBytes, gpu.name, plan.shared_limit);
    choose_tiles(plan, size, places);
    count_pieces(plan, size);
    sums = plan.tile_height * gpu_sum_pitch(plan.tile_height, plan.tile_width) * kPlaceBytes;
    places -=
        ceil_div(places, int64_t{16});  // for the next try: more chunks than there is room for
  } while (sums + beside() > plan.shared_limit);
  plan.stores_delta =
      pass == Pass::kBackward &&
      (plan.walks_states ? size.rank > kGpuOnChipNumbers
                         : packs(size) && (plan.pieces == 0 || size.record() > kGpuOnChipNumbers));
  if (size.kept_states && (size.states == 1 || plan.walks_states)) {
    const Ss2dGpuPlan tiles = kept_tiles(size);
    plan.kept = plan.tile_height == tiles.tile_height && plan.tile_width == tiles.tile_width;
  }

  const auto blocks_of = [&](int64_t shared) {
    return std::min<int64_t>(32, gpu.shared_per_multiprocessor / (shared + kReservedBytes));
  };
  const bool lines = plan.pieces > 0 && (pass == Pass::kForward ? plan.packed : packs(size));
  const bool backward = pass == Pass::kBackward;
  const bool chains = plan.walks_states || (!lines && (backward ? packs(size) : plan.packed));
  const int64_t most = plan.walks_states ? gpu_states_warps(pass)
                       : !backward       ? kGpuMaxWarps
                       : chains          ? kGpuPackedWarps
                                         : kGpuBackwardWarps;
  const int64_t most_chains = chains && backward && !plan.walks_states ? kGpuChains : most;
  const auto blocks_by_memory = [&](int64_t warps) { return blocks_of(sums + hand_over(warps)); };
  int64_t warps = lines ? choose_line_warps(plan, blocks_by_memory(1), most)
                        : choose_warps(plan.chunks, blocks_by_memory, most, most_chains);
  plan.sums_chunks = plan.pieces == 0 && size.routes == 1 && packs(size) && warps > 1 &&
                     size.record() <= kGpuChunkNumbers;
  if (plan.sums_chunks) {
    const int64_t blocks = size.batch * plan.blocks_an_image();
    warps =
        choose_chunk_warps(plan.chunks, ceil_div(blocks, gpu.multiprocessors), most, most_chains);
  }
  plan.general_block = 32 * (backward ? std::min<int64_t>(warps, kGpuBackwardWarps) : warps);
  plan.general_shared_bytes = sums + (plan.sums_chunks ? general_bytes(warps) : hand_over(warps));
  plan.walks_images = !backward && plan.pieces == 0 && packs(size) &&
                      blocks_of(image_bytes(size)) >= kGpuImageBlocks &&
                      3 * plan.blocks_of_images(size.batch) >= 4 * gpu.multiprocessors;
  if (plan.walks_images) warps = kGpuImageWarps;
  const int64_t cell_bytes = gpu_cell_bytes(size.routes, pass);
  plan.cells = plan.pieces > 0 && may_be_cells(size, pass) && (!backward || plan.kept) &&
               plan.tile_height % kCellSide == 0 && plan.tile_width % kCellSide == 0 &&
               cell_bytes <= plan.shared_limit && blocks_of(cell_bytes) >= kCellFewestBlocks &&
               size.batch * plan.blocks_an_image() >= kCellFewestBlocks * gpu.multiprocessors;
  if (plan.cells) warps = kCellWarps;
  plan.block = 32 * warps;
  plan.shared_bytes = plan.cells          ? cell_bytes
                      : plan.walks_images ? image_bytes(size)
                      : plan.sums_chunks
                          ? warps * kGpuChunkSums * int64_t{sizeof(float)} + packed_bytes(warps)
                          : plan.general_shared_bytes;
  const int64_t most_blocks = plan.cells          ? backward ? kCellBackwardBlocks : kCellBlocks
                              : plan.walks_images ? std::min<int64_t>(most / warps, kGpuImageBlocks)
                              : warps > 1         ? std::min(most / warps, most_chains)
                                                  : most;
  plan.blocks_per_multiprocessor = std::min(blocks_of(plan.shared_bytes), most_blocks);
  plan.warps_per_multiprocessor = plan.blocks_per_multiprocessor * warps;

  if (plan.stores_delta) {
    GpuProducts products = gpu_products_at_once(size.rank, size.channels, plan.shared_limit);
    plan.at_once = products.side > 0;
    if (!plan.at_once) products = gpu_products(size.rank, size.channels);
    plan.product_side = products.side, plan.product_columns = products.columns;
    const int64_t side = products.side;
    const int64_t tiles = ceil_div(size.batch * size.pixels(), side);
    const int64_t routes = std::max<int64_t>(1, size.routes);
    // One wave of blocks. Or half of one, as many steps each at 768 channels of 7 x 7 pixels as the other half has, which
    // makes the records' gradients.
    const int64_t parts =
        plan.at_once ? std::min<int64_t>(products.blocks(),
                                         blocks_of(products.shared_bytes(size.channels))) *
                           gpu.multiprocessors / routes
                     : (side == 96 ? 2 : 3) * gpu.multiprocessors /
                           (2 * routes * std::max<int64_t>(1, ceil_div(size.channels, side)));
    plan.delta_parts = std::clamp<int64_t>(parts, 1, std::max<int64_t>(1, tiles));
  }
  const Ss2dGpuWorkspace parts = gpu_workspace(size, plan);
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const auto images_below = [&](int64_t goal, int64_t floats) {
    return std::clamp<int64_t>(goal / (kFloat * std::max<int64_t>(1, floats)), 1,
                               std::max<int64_t>(1, size.batch));
  };
  const int64_t batch = std::max<int64_t>(1, size.batch);
  const int64_t goal_of_pieces = plan.cells ? kCellWorkspaceGoal : kTiledWorkspaceGoal;
  const int64_t launches = ceil_div(batch, images_below(goal_of_pieces, parts.of_pieces()));
  plan.pieces_slice = ceil_div(batch, launches);
  plan.slice = plan.pieces_slice;
  if (parts.an_image() > 0) {
    const int64_t resident = gpu.multiprocessors * plan.blocks_per_multiprocessor;
    const int64_t wave = resident / std::max<int64_t>(1, plan.blocks_an_image());
    const int64_t goal = plan.pieces > 0 ? kTiledWorkspaceGoal : kWorkspaceGoal;
    int64_t most = std::max(wave, images_below(goal, parts.an_image()));
    if (plan.stores_delta && plan.pieces == 0 && size.states == 1)
      most =
          std::max(most, std::min(2 * wave, images_below(kDeltaWorkspaceGoal, parts.an_image())));
    plan.slice = fullest_slice(plan.blocks_an_image(), resident, std::min(most, plan.slice));
  }
  plan.grid =
      plan.walks_images ? plan.blocks_of_images(plan.slice) : plan.slice * plan.blocks_an_image();
  plan.workspace_bytes = kFloat * (plan.pieces_slice * parts.of_pieces() +
                                   plan.slice * (parts.carries + parts.starts) +
                                   parts.records_of(plan.slice) + parts.parameters_of(plan.slice));

  const int64_t elements = size.batch * size.channels * size.pixels();
  const int64_t data = size_of(size.dtype), out = size_of(size.out_dtype);
  const int64_t inputs =
      data * (elements + size.batch * size.pixels() * size.routes * size.record()) +
      4 * size.routes * size.channels * (size.states + size.rank + 2);
  plan.exponentials = elements * size.routes * (size.states + 2);
  plan.bytes = (pass == Pass::kForward ? 1 : 2) * inputs + elements * out;
  return plan;
}

std::string variant_of(const Ss2dGpuPlan& plan) {
  if (plan.cells) return "cells: the states that enter every eighth step are found first";
  return plan.pieces > 0 ? "tiled: the states at the tiles' borders are found first"
                         : "whole planes: one tile each";
}

std::string to_string(const Ss2dGpuPlan& plan) {
  std::string text = fmt::format(
      "ss2d {} on a GPU\n"
      "  variant         {}\n"
      "  kernels         {}\n"
      "  tile            {} x {} pixels of {} channels, {} x {} tiles a plane\n",
      name_of(plan.pass), variant_of(plan), kernels_of(plan), plan.tile_height, plan.tile_width,
      kGpuChannels, plan.tile_rows, plan.tile_columns);
  if (plan.pieces > 0 && !plan.cells)
    text += fmt::format("  pieces          {}   parts of lines whose entering states come first\n",
                        plan.pieces);
  if (plan.stores_delta)
    text += fmt::format(
        "  delta           its gradient is stored and multiplied behind each launch,\n"
        "                  {} parts of the pixels for that of dt_proj_weight;\n"
        "                  read {}, in tiles of {} x {}\n",
        plan.delta_parts, plan.at_once ? "once for both products" : "once for each product",
        plan.product_side, plan.product_side);
  if (plan.sums_chunks)
    text += "  sums            of the chunks under way: no other route adds to them\n";
  if (plan.walks_images)
    text += fmt::format("  images          {} a block: a lane walks one of them from end to end\n",
                        kGpuSegments);
  text += fmt::format(
      "  chunks          {} of {} steps a route and tile\n"
      "  grid            {} blocks of {} threads, {} images a launch\n"
      "  shared memory   {} of {} bytes a block\n"
      "  occupancy       {} blocks, {} warps a multiprocessor\n"
      "  workspace       {} bytes\n"
      "  bytes           {}\n"
      "  exponentials    {}",
      plan.chunks, kGpuSegments * plan.segment_steps(), plan.grid, plan.block, plan.slice,
      plan.shared_bytes, plan.shared_limit, plan.blocks_per_multiprocessor,
      plan.warps_per_multiprocessor, plan.workspace_bytes, plan.bytes, plan.exponentials);
  return text;
}

}  // namespace linescan
