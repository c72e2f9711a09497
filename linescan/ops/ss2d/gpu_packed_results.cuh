// What becomes of a segment of the packed forward kernels when the last route has added to it.
#pragma once

#include "linescan/ops/ss2d/gpu_forward.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

// Writes the first `valid` steps of the lane's two channels, which count in units of ln 2, to `out`.
template <typename T>
__device__ __forceinline__ void write_results(const ForwardArguments<T>& args,
                                              const BlockPlace& place, const TileRoute& route,
                                              const SegmentCursor& here, int valid,
                                              const float2 (&result)[kGpuSegmentSteps]) {
  const auto write = [&]<typename Out>() {
    const auto planes = args.template out_as<Out>();
    const PlaneWalk<Out> walk(planes.data + place.image * planes.batch + lane_channel(args, place),
                              planes.pixel, route);
    Out* first = walk.at(here.line, here.part);
#pragma unroll
    for (int t = 0; t < kGpuSegmentSteps; ++t) {
      const Pack<Out, 2> pair = {from_float<Out>(kLn2 * result[t].x),
                                 from_float<Out>(kLn2 * result[t].y)};
      if (t < valid) *reinterpret_cast<Pack<Out, 2>*>(offset_bytes(first, t, walk.step)) = pair;
    }
  };
  args.out_dtype == DType::kFloat32 ? write.template operator()<float>()
                                    : write.template operator()<T>();
}

}  // namespace linescan
