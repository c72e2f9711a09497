// The gradients of B and C: sums over rows, which a block's warps leave in shared memory state by state.
#pragma once

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/selective_scan/gpu_factors.cuh"

namespace linescan {

// Adds the sums that the block's warps have left for the states of a chunk, and writes them out.
template <int kSegments>
__device__ __forceinline__ void write_factor_sums(const SelectiveScanGpuArguments& args,
                                                  const GpuPlace<kSegments>& place,
                                                  const GpuChunk<kSegments>& chunk,
                                                  const float* sums) {
  constexpr int kPitch = GpuShape<kSegments>::kPitch;
  const int warp_sums = 2 * args.state_tile * kPitch;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const GpuFactorGradient& f = args.sums[which];
    if (f.data == nullptr) continue;
    const int item = f.part != 0 ? place.item - args.first_batch : place.item;
    unsigned char* to = f.data + place.part * f.part + item * f.batch + place.group * f.group +
                        chunk.first * f.state + chunk.tile.start * f.step;
    int n = place.warp + which * (args.warps / 2);  // other warps begin with C than with B
    if (n >= args.warps) n -= args.warps;
#pragma unroll 1
    for (; n < chunk.count; n += args.warps)
#pragma unroll 1
      for (int t = place.lane; t < chunk.tile.steps; t += kGpuWarp) {
        const float* from = sums + (which * args.state_tile + n) * kPitch + chunk.tile.place(t);
        float total = 0;
#pragma unroll 3
        for (int warp = 0; warp < args.warps; ++warp) total += from[warp * warp_sums];
        store_float(to + n * f.state + t * f.step, f.dtype, total);
      }
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
