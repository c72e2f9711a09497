// selective_scan with one state and short rows that start at odd addresses: what its two kernels share. A block
// is one warp, a lane walks one of 32 neighbouring rows. Whole rows come to shared memory as the one run of memory
// that they are, and what is written takes the place of what was read.
#pragma once

#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_one_state.cuh"
#include "linescan/ops/selective_scan/gpu_row_runs.cuh"

namespace linescan {

// Whose rows a warp has: 32 channels of one group, or those that are left.
struct ShortRowsPlace {
  int lane, item, group, part;
  int channel, rows;  // the first one, and how many
  bool exists;        // the lane's row
  int length;

  __device__ __forceinline__ explicit ShortRowsPlace(const SelectiveScanGpuArguments& args) {
    lane = static_cast<int>(threadIdx.x);
    int index = static_cast<int>(blockIdx.x);
    part = index % args.blocks;  // neighbouring blocks read the same B and C
    index /= args.blocks;
    group = index % args.groups;
    item = args.first_batch + index / args.groups;
    channel = group * args.group_channels + part * kGpuWarp;
    rows = min(kGpuWarp, args.group_channels - part * kGpuWarp);
    exists = part * kGpuWarp + lane < args.group_channels;
    length = static_cast<int>(args.length);
  }
  __device__ __forceinline__ unsigned char* address(const GpuSequence& q) const {
    return q.data + item * q.batch + channel * q.channel;
  }
  // The lane's row in [batch, channels].
  __device__ __forceinline__ int64_t at(const SelectiveScanGpuArguments& args) const {
    return int64_t{item} * args.channels + channel + lane;
  }
  // Its state at the start of tile 1, 2, ..
  __device__ __forceinline__ float* tile_state(const SelectiveScanGpuArguments& args,
                                               int tile) const {
    return args.tile_states +
           (int64_t{tile - 1} * args.state_items + item - args.first_batch) * args.channels +
           channel + lane;
  }
  __device__ __forceinline__ RowRun run(const GpuSequence& q) const {
    return {address(q), rows, length, lane};
  }
};

// A sequence's rows start to come to shared memory. Rows that do not exist are zero there.
template <typename T>
__device__ __forceinline__ void fetch_rows(const ShortRowsPlace& place, const GpuSequence& q,
                                           T* to) {
  place.run(q).fetch(q, to);
  if (!place.exists)
    for (int t = 0; t < place.length; ++t) to[place.lane * place.length + t] = from_float<T>(0);
}

// Numbers of type G where two of type T were: T itself in place of the first, a float beside half data in halves,
// the upper ones in place of the first.
template <typename T, typename G>
__device__ __forceinline__ void put_out(T* first, T* second, int at, float x) {
  if constexpr (sizeof(G) == sizeof(T)) {
    first[at] = from_float<T>(x);
  } else {
    const uint32_t bits = __float_as_uint(x);
    first[at] = T{static_cast<uint16_t>(bits >> 16)};
    second[at] = T{static_cast<uint16_t>(bits)};
  }
}
template <typename T, typename G>
__device__ __forceinline__ void store_out(const ShortRowsPlace& place, const GpuSequence& q,
                                          const T* first, const T* second) {
  if constexpr (sizeof(G) == sizeof(T)) {
    place.run(q).store(q, first);
  } else {
    place.run(q).for_pieces<sizeof(G)>(q, [&]<int kBytes>(int offset, unsigned char* to) {
      if constexpr (kBytes == 16) {
        const uint2 high = *reinterpret_cast<const uint2*>(first + offset / 4);
        const uint2 low = *reinterpret_cast<const uint2*>(second + offset / 4);
        uint4 four;
        four.x = __byte_perm(low.x, high.x, 0x5410), four.y = __byte_perm(low.x, high.x, 0x7632);
        four.z = __byte_perm(low.y, high.y, 0x5410), four.w = __byte_perm(low.y, high.y, 0x7632);
        *reinterpret_cast<uint4*>(to) = four;
      } else {
#pragma unroll
        for (int n = 0; n < kBytes / 4; ++n)
          reinterpret_cast<uint32_t*>(to)[n] =
              uint32_t{first[offset / 4 + n].bits} << 16 | second[offset / 4 + n].bits;
      }
    });
  }
}

// B and C on their way to shared memory: kShortPitch floats for kShortItems steps, zero behind the end. All loads are
// under way before the first number is wanted.
template <typename T>
class ShortFactors {
 public:
  __device__ __forceinline__ ShortFactors(const SelectiveScanGpuArguments& args,
                                          const ShortRowsPlace& place)
      : count_(args.tiles * kShortPitch), lane_(place.lane) {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const GpuFactor& f = args.factors[which];
      const unsigned char* from = f.data + place.item * f.batch + place.group * f.group;
#pragma unroll
      for (int n = 0; n < kOwn; ++n) {
        const int i = place.lane + n * kGpuWarp, inside = i % kShortPitch;
        const int t = i / kShortPitch * kShortItems + inside;
        const bool some = inside < kShortItems && t < place.length;
        numbers_[which][n] = some ? *reinterpret_cast<const T*>(from + t * f.step) : T{};
      }
    }
  }
  // to [2, tiles * kShortPitch]
  __device__ __forceinline__ void put(float* to) const {
#pragma unroll
    for (int which = 0; which < 2; ++which)
#pragma unroll
      for (int n = 0; n < kOwn; ++n) {
        const int i = lane_ + n * kGpuWarp;
        if (i < count_) to[which * count_ + i] = to_float(numbers_[which][n]);
      }
  }

 private:
  static constexpr int kMostTiles = (kShortLength + kShortItems - 1) / kShortItems;
  static constexpr int kOwn = (kMostTiles * kShortPitch + kGpuWarp - 1) / kGpuWarp;
  int count_, lane_;
  T numbers_[2][kOwn];
};
// Those of a tile; `from`: of B or C.
__device__ __forceinline__ void read_factor(const float* from, int tile, float (&x)[kShortPitch]) {
#pragma unroll
  for (int j = 0; j < kShortPitch; j += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + tile * kShortPitch + j);
    x[j] = four.x, x[j + 1] = four.y, x[j + 2] = four.z, x[j + 3] = four.w;
  }
}

// Calls f<whole>(tile): whole tiles have all of their steps.
template <class Function>
__device__ __forceinline__ void for_tile(const ShortRowsPlace& place, int tile, const Function& f) {
  if ((tile + 1) * kShortItems <= place.length)
    f.template operator()<true>();
  else
    f.template operator()<false>();
}

}  // namespace linescan
