// How delta's gradient is multiplied on a GPU where it is stored (delta_products.cu, delta_products_at_once.cu).
#pragma once

#include "linescan/ops/ss2d/gpu_plan.h"

namespace linescan {

// Tiles on their way, and numbers between rows of those that have some, against bank conflicts.
inline constexpr int kGpuProductStages = 3;
inline constexpr int kGpuProductPad = 8;

struct GpuProducts {
  int side = 0;     // pixels, and channels, of a tile
  int columns = 0;  // numbers of dts: no fewer than the rank

  // Of a block that makes both products at once. Channels whose sums its registers hold, blocks that a multiprocessor
  // has registers for, and tiles of dts: one for each step under way, or two of 32 columns, where a tile of pixels always takes more than one step.
  constexpr int64_t most_channels() const {
    return (columns == 16 ? 1 : 2) * (side == 96 ? 192 : 256);
  }
  constexpr int blocks() const { return side == 96 || columns > 16 ? 2 : 4; }
  constexpr int dts_tiles() const { return columns == 16 ? kGpuProductStages : 2; }
  // Of a step: delta's gradient, and those of B and C from every 16 channels.
  constexpr int64_t step_bytes() const {
    return 2 * side * side + 4 * side * (side / kGpuChannels);
  }
  constexpr int64_t shared_bytes(int64_t channels) const {
    return kGpuProductStages * step_bytes() + (dts_tiles() + ceil_div(channels, int64_t{side})) *
                                                  2 * side * (columns + kGpuProductPad);
  }
};
// Of a block that makes both at once, with shared_limit bytes of shared memory at most; no side: there is none. 32 columns want
// more than one step a tile: of one, the third tile of dts would come while the first is read (dts_tiles).
constexpr GpuProducts gpu_products_at_once(int64_t rank, int64_t channels, int64_t shared_limit) {
  for (const GpuProducts products :
       {GpuProducts{96, 16}, GpuProducts{96, 32}, GpuProducts{64, 16}, GpuProducts{64, 32}})
    if (rank <= products.columns && channels <= products.most_channels() &&
        (products.side == 64 || channels % 96 == 0) &&
        (products.columns == 16 || channels > products.side) &&
        products.shared_bytes(channels) <= shared_limit)
      return products;
  return {};
}
// Of blocks that make one each, for ranks up to those of kGpuMostHalves.
constexpr GpuProducts gpu_products(int64_t rank, int64_t channels) {
  const int columns = rank <= 32 ? 32 : rank <= 48 ? 48 : 80;
  return {channels % 96 == 0 && columns < 80 ? 96 : 64, columns};
}

}  // namespace linescan
