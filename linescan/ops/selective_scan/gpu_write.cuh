// A warp's tile of a sequence on its way out: from registers to global memory.
#pragma once

#include "linescan/ops/selective_scan/gpu_tile.cuh"

namespace linescan {

template <typename T>
__device__ __forceinline__ Pack<T, 4> pack_four(const float* from) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  return {from_float<T>(x.x), from_float<T>(x.y), from_float<T>(x.z), from_float<T>(x.w)};
}

// From the warp's exchange in shared memory, row by row.
template <typename T, int kSegments>
__device__ __forceinline__ void write_rows(const GpuSequence& q, unsigned char* to,
                                           const float* exchange, const GpuPlace<kSegments>& place,
                                           const GpuTile<kSegments>& tile) {
  using Shape = GpuShape<kSegments>;
  constexpr int kFours = kSegments * kGpuItems / 4;  // of a row
  if (q.vectors && tile.whole() && place.full) {
    constexpr int kTogether = kFours < kGpuWarp ? kGpuWarp / kFours : 1;  // rows at once
    constexpr int kTurns = kFours < kGpuWarp ? 1 : kFours / kGpuWarp;     // of a row
    const int row = kFours < kGpuWarp ? place.lane / kFours : 0;
    const int t = (kFours < kGpuWarp ? place.lane % kFours : place.lane) * 4;
    unsigned char* address = to + row * q.channel + t * sizeof(T);
    const float* from =
        exchange + row * Shape::kPitch + t / kGpuItems * kGpuSegmentPitch + t % kGpuItems;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int turn = i % kTurns;  // 128 steps further are 8 segments further
      *reinterpret_cast<Pack<T, 4>*>(address + turn * 4 * kGpuWarp * sizeof(T)) =
          pack_four<T>(from + turn * 8 * kGpuSegmentPitch);
      if (turn == kTurns - 1) {
        address += kTogether * q.channel;
        from += kTogether * Shape::kPitch;
      }
    }
  } else if (q.vectors) {
#pragma unroll 1
    for (int unit = place.lane; unit < place.rows * kFours; unit += kGpuWarp) {
      const int row = unit / kFours, t = unit % kFours * 4;
      if (t >= tile.steps) continue;
      const auto four = pack_four<T>(exchange + row * Shape::kPitch + tile.place(t));
      T* address = reinterpret_cast<T*>(to + row * q.channel) + t;
      if (t + 4 <= tile.steps) {
        *reinterpret_cast<Pack<T, 4>*>(address) = four;
      } else {
#pragma unroll
        for (int j = 0; j < 3; ++j)
          if (t + j < tile.steps) address[j] = four.values[j];
      }
    }
  } else {
    for (int t = place.lane; t < tile.steps; t += kGpuWarp) {
      const float* from = exchange + tile.place(t);
      unsigned char* address = to + t * q.step;
#pragma unroll 4
      for (int row = 0; row < place.rows; ++row, address += q.channel, from += Shape::kPitch)
        *reinterpret_cast<T*>(address) = from_float<T>(*from);
    }
  }
}

// Straight from the lanes: neighbouring rows are neighbouring addresses.
template <typename T, int kSegments>
__device__ __forceinline__ void write_steps(const GpuSequence& q, unsigned char* to,
                                            const GpuPlace<kSegments>& place,
                                            const GpuTile<kSegments>& tile,
                                            const float (&x)[kGpuItems]) {
  const int first = place.segment * kGpuItems;
  const int count = place.exists() ? tile.steps - first : 0;
  unsigned char* address = to + place.row * q.channel + first * q.step;
#pragma unroll
  for (int j = 0; j < kGpuItems; ++j, address += q.step)
    if (j < count) *reinterpret_cast<T*>(address) = from_float<T>(x[j]);
}

// A lane's items to the warp's exchange, or to its second half.
__device__ __forceinline__ void give_items(const float (&x)[kGpuItems], float* exchange, int lane) {
  float* own = exchange + lane * kGpuSegmentPitch;
  for_fours([&](int i) {
    *reinterpret_cast<float4*>(own + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
  });
}

// x: what the team's warps have given. `exchange`: of the team's first warp, or its second half.
__device__ __forceinline__ void add_items(const SelectiveScanGpuArguments& args,
                                          float (&x)[kGpuItems], const float* exchange, int lane) {
  const float* from = exchange + lane * kGpuSegmentPitch;
  for_fours([&](int i) {
    float4 sum = *reinterpret_cast<const float4*>(from + i);
#pragma unroll 1
    for (int share = 1; share < args.shares; ++share) {
      const float4 four = *reinterpret_cast<const float4*>(from + share * args.exchange + i);
      sum.x += four.x, sum.y += four.y, sum.z += four.z, sum.w += four.w;
    }
    x[i] = sum.x, x[i + 1] = sum.y, x[i + 2] = sum.z, x[i + 3] = sum.w;
  });
}

// Writes the lane's items of a tile through the warp's exchange.
template <int kSegments>
__device__ __forceinline__ void write(const GpuSequence& q, float* exchange,
                                      const GpuPlace<kSegments>& place,
                                      const GpuTile<kSegments>& tile, const float (&x)[kGpuItems]) {
  unsigned char* to = place.address(q, tile.start);
  const auto as = [&]<typename T>() {
    if (q.lines == GpuLines::kSteps)
      write_steps<T>(q, to, place, tile, x);
    else
      write_rows<T>(q, to, exchange, place, tile);
  };
  if (q.lines != GpuLines::kSteps) {
    // Through shared memory: a lane's own items lie too far from its neighbours'.
    give_items(x, exchange, place.lane);
    __syncwarp();
  }
  if (q.dtype == DType::kBFloat16)
    as.template operator()<BFloat16>();
  else if (q.dtype == DType::kFloat16)
    as.template operator()<Float16>();
  else
    as.template operator()<float>();
  __syncwarp();
}

}  // namespace linescan
