// Which lane has which rows and steps: what a warp's tile is (GpuTile), and who works on it (GpuPlace).
#pragma once

#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/selective_scan/gpu_arguments.h"

namespace linescan {

template <int kPower>
inline constexpr int kLog2 = 1 + kLog2<kPower / 2>;
template <>
inline constexpr int kLog2<1> = 0;

// What kSegments, the lanes that share a row, fixes.
template <int kSegments>
struct GpuShape {
  static constexpr int kTile = kSegments * kGpuItems;          // steps
  static constexpr int kRows = kGpuWarp / kSegments;           // of a warp
  static constexpr int kPitch = kSegments * kGpuSegmentPitch;  // floats of a tile in shared memory
};

// Run-time value -> compile-time value.
template <class Function>
void dispatch_segments(int64_t segments, const Function& function) {
  switch (segments) {
    case 1:
      return function.template operator()<1>();
    case 2:
      return function.template operator()<2>();
    case 4:
      return function.template operator()<4>();
    case 8:
      return function.template operator()<8>();
    case 16:
      return function.template operator()<16>();
    default:
      return function.template operator()<32>();
  }
}

// The steps of one tile: `steps` of them exist, from `start` on; kGpuItems in each segment.
template <int kSegments>
struct GpuTile {
  int64_t start;
  int steps;

  __device__ __forceinline__ GpuTile(const SelectiveScanGpuArguments& args, int tile) {
    constexpr int kTile = GpuShape<kSegments>::kTile;
    start = int64_t{tile} * kTile;
    steps = static_cast<int>(min(args.length - start, int64_t{kTile}));
  }
  __device__ __forceinline__ bool whole() const { return steps == GpuShape<kSegments>::kTile; }
  // Where step t of the tile is in an array of segments of kGpuSegmentPitch.
  static __device__ __forceinline__ int place(int t) {
    return t / kGpuItems * kGpuSegmentPitch + t % kGpuItems;
  }
};

// Calls f(i) for i = 0, 4, 8, .. below kGpuItems, unrolled, so that arrays indexed by i stay in
// registers.
template <class Function>
__device__ __forceinline__ void for_fours(const Function& f) {
#pragma unroll
  for (int i = 0; i < kGpuItems; i += 4) f(i);
}
template <class Function>
__device__ __forceinline__ void for_fours_backwards(const Function& f) {
#pragma unroll
  for (int i = kGpuItems - 4; i >= 0; i -= 4) f(i);
}

// A lane's items of an array in shared memory.
__device__ __forceinline__ void read_steps(const float* from, float (&x)[kGpuItems]) {
  for_fours([&](int i) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
  });
}

// What a thread works on: its row of the problem, its segment of every tile, and its share of the
// states: share, share + shares, ..
template <int kSegments>
struct GpuPlace {
  int lane, warp, segment, row;  // row: of the team
  int team, share;
  int rows;               // of the team, that exist
  bool full;              // all of them
  int item, group, part;  // of the batch; part: of the group's channels
  int channel;            // the row's, of all

  __device__ __forceinline__ explicit GpuPlace(const SelectiveScanGpuArguments& args) {
    constexpr int kRows = GpuShape<kSegments>::kRows;
    lane = static_cast<int>(threadIdx.x % kGpuWarp);
    // The same in all lanes, which the compiler cannot know of a thread's number.
    warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x / kGpuWarp), 0);
    team = warp / args.shares;
    share = warp - team * args.shares;
    segment = lane % kSegments;
    row = lane / kSegments;
    int index = static_cast<int>(blockIdx.x);
    part = index % args.blocks;  // neighbouring blocks read the same B and C
    index /= args.blocks;
    group = index % args.groups;
    item = args.first_batch + index / args.groups;
    const int first = (part * args.teams + team) * kRows;
    // Asked apart: ptxas 13.0 takes the answer to rows == kRows from the minimum, wrongly.
    full = first + kRows <= args.group_channels;
    rows = full ? kRows : max(0, args.group_channels - first);
    channel = group * args.group_channels + first + row;
  }
  __device__ __forceinline__ bool exists() const { return row < rows; }
  // Of the team's first row.
  __device__ __forceinline__ unsigned char* address(const GpuSequence& q, int64_t start) const {
    return q.data + item * q.batch + (channel - row) * q.channel + start * q.step;
  }
  // Of the row's first state in a tensor [batch, channels, states].
  __device__ __forceinline__ int64_t states_at(const SelectiveScanGpuArguments& args) const {
    return (int64_t{item} * args.channels + channel) * args.states;
  }
};

// All warps of a team have come here.
__device__ __forceinline__ void sync_team(const SelectiveScanGpuArguments& args) {
  if (args.shares == 1)
    __syncwarp();
  else
    __syncthreads();
}

}  // namespace linescan
