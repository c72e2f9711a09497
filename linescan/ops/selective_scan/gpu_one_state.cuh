// selective_scan with one state, lanes along the length: what its two kernels share. A lane has kItems
// neighbouring steps, kLanes of them a row's tile; backward fewer in a short last tile. B and C of the tile stay in registers while a warp
// meets the rows of its block in turn, so the gradients of B and C need no sum over lanes.
#pragma once

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_factor_sums.cuh"
#include "linescan/ops/selective_scan/gpu_items.cuh"

namespace linescan {

template <int kLanesOfRow, int kItemsOfLane>
struct OneStatePlace {
  static constexpr int kLanes = kLanesOfRow, kItems = kItemsOfLane;
  static constexpr int kTile = kLanes * kItems;      // steps
  static constexpr int kRows = kGpuWarp / kLanes;    // of a warp at a time
  static constexpr int kStride = kOneWarps * kRows;  // rows from one turn to the next

  int lane, warp, segment, row;  // row: the lane's in its warp's first turn
  int item, group, part;         // of the batch; part: of the group's channels
  int channel, rows;             // the block's first channel, and how many

  __device__ __forceinline__ explicit OneStatePlace(const SelectiveScanGpuArguments& args) {
    lane = static_cast<int>(threadIdx.x % kGpuWarp);
    warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kGpuWarp), 0);
    segment = lane % kLanes;
    row = warp * kRows + lane / kLanes;
    int index = static_cast<int>(blockIdx.x);
    part = index % args.blocks;  // neighbouring blocks read the same B and C
    index /= args.blocks;
    group = index % args.groups;
    item = args.first_batch + index / args.groups;
    rows = min(args.rows, args.group_channels - part * args.rows);
    channel = group * args.group_channels + part * args.rows;
  }
  // Steps that the lane has in a tile, kItems at most, and the first of them.
  template <int kItems = kItemsOfLane>
  __device__ __forceinline__ int count(const SelectiveScanGpuArguments& args, int tile) const {
    const int64_t rest = args.length - start<kItems>(tile);
    return static_cast<int>(max(int64_t{0}, min(rest, int64_t{kItems})));
  }
  template <int kItems = kItemsOfLane>
  __device__ __forceinline__ int64_t start(int tile) const {
    return int64_t{tile} * kTile + segment * kItems;
  }
  // Of the lane's first row at step t; its next row is kStride rows further.
  __device__ __forceinline__ unsigned char* address(const GpuSequence& q, int64_t t) const {
    return q.data + item * q.batch + (channel + row) * q.channel + t * q.step;
  }
  // The rows' states at the start of tile 1, 2, ..
  __device__ __forceinline__ float* tile_states(const SelectiveScanGpuArguments& args,
                                                int tile) const {
    return args.tile_states +
           (int64_t{tile - 1} * args.state_items + item - args.first_batch) * args.channels +
           channel;
  }
};

// B or C at the lane's steps of a tile, as they lie in memory.
template <typename T, int kItems, class Place>
__device__ __forceinline__ GpuRawItems<T, kItems> load_factor(const SelectiveScanGpuArguments& args,
                                                              int which, const Place& place,
                                                              int tile) {
  const GpuFactor& f = args.factors[which];
  const unsigned char* from = f.data + place.item * f.batch + place.group * f.group +
                              place.template start<kItems>(tile) * f.step;
  return load_items<T, kItems>(from, f.step, f.unit, place.template count<kItems>(args, tile));
}
template <typename T, int kItems>
__device__ __forceinline__ void to_floats(float (&x)[kItems], const GpuRawItems<T, kItems>& items) {
#pragma unroll
  for (int j = 0; j < kItems; ++j) x[j] = items[j];
}

// What a row's steps need besides: in shared memory, with what it hands from tile to tile.
struct OneStateRow {
  float A, bias, D;
  float carry;  // the state on the way forward, the gradient of the state on the way back
};

__device__ __forceinline__ OneStateRow one_state_row(const SelectiveScanGpuArguments& args,
                                                     int item, int channel, const float* carry) {
  return {args.A[channel], args.delta_bias ? args.delta_bias[channel] : 0,
          args.D ? args.D[channel] : 0, carry ? carry[int64_t{item} * args.channels + channel] : 0};
}

}  // namespace linescan
