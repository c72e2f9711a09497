// The gradients of B and C: sums over rows, which a block's teams leave in shared memory state by state.
#pragma once

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/selective_scan/gpu_factors.cuh"

namespace linescan {

// Four sums of neighbouring steps, `count` of which exist.
__device__ __forceinline__ void store_four(unsigned char* to, const GpuFactorGradient& f,
                                           const float4& four, int count) {
  const float x[4] = {four.x, four.y, four.z, four.w};
  if (f.vectors && count >= 4 && f.dtype == DType::kFloat32) {
    *reinterpret_cast<float4*>(to) = four;
  } else if (f.vectors && count >= 4 && f.dtype == DType::kBFloat16) {
    *reinterpret_cast<Pack<BFloat16, 4>*>(to) = {
        from_float<BFloat16>(x[0]), from_float<BFloat16>(x[1]), from_float<BFloat16>(x[2]),
        from_float<BFloat16>(x[3])};
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (j < count) store_float(to + j * f.step, f.dtype, x[j]);
  }
}

// Adds the sums that the block's teams have left for the states of a chunk, and writes them out.
template <int kSegments>
__device__ __forceinline__ void write_factor_sums(const SelectiveScanGpuArguments& args,
                                                  const GpuPlace<kSegments>& place,
                                                  const GpuChunk<kSegments>& chunk,
                                                  const float* sums) {
  constexpr int kPitch = GpuShape<kSegments>::kPitch, kFours = GpuShape<kSegments>::kTile / 4;
  const int team_sums = 2 * args.state_tile * kPitch;
  const int units = chunk.count * kFours;
#pragma unroll 1
  for (int unit = static_cast<int>(threadIdx.x); unit < 2 * units;
       unit += static_cast<int>(blockDim.x)) {
    const int which = unit >= units;
    const GpuFactorGradient& f = args.sums[which];
    const int n = (unit - which * units) / kFours, t = unit % kFours * 4;
    if (f.data == nullptr || t >= chunk.tile.steps) continue;
    const float* from = sums + (which * args.state_tile + n) * kPitch + chunk.tile.place(t);
    float4 total = *reinterpret_cast<const float4*>(from);
#pragma unroll 2
    for (int team = 1; team < args.teams; ++team) {
      const float4 other = *reinterpret_cast<const float4*>(from + team * team_sums);
      total.x += other.x, total.y += other.y, total.z += other.z, total.w += other.w;
    }
    const int item = f.part != 0 ? place.item - args.first_batch : place.item;
    unsigned char* to = f.data + place.part * f.part + item * f.batch + place.group * f.group +
                        (chunk.first + n) * f.state + (chunk.tile.start + t) * f.step;
    store_four(to, f, total, chunk.tile.steps - t);
  }
}

// What fold_lanes has left in x, to its place in the warp's sums of one state.
template <int kSegments>
__device__ __forceinline__ void leave_sums(const float (&x)[kGpuItems], float* to) {
  if constexpr (kFolded<kSegments> == 1)
    to[0] = x[0];
  else if constexpr (kFolded<kSegments> == 2)
    *reinterpret_cast<float2*>(to) = make_float2(x[0], x[1]);
  else
#pragma unroll
    for (int i = 0; i < kFolded<kSegments>; i += 4)
      *reinterpret_cast<float4*>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
}

}  // namespace linescan
