// What becomes of a segment of the packed forward kernels when the last route has added to it.
#pragma once

#include "linescan/ops/ss2d/gpu_forward.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

// Whether the packed kernels can write the problem's results, if any are wanted.
template <typename T>
bool packed_result(const ForwardArguments<T>& args) {
  if (args.out.data == nullptr) return true;
  if (args.out_dtype != DType::kFloat32 && args.out_dtype != kDTypeOf<T>) return false;
  return packed_pairs(args.out, size_of(args.out_dtype), args.width);
}

// Writes the lane's two channels to `out`, on one route.
template <typename T>
struct ResultWalk {
  const TileRoute& route;
  PlaneWalk<char> walk;
  bool wide;  // float32

  __device__ __forceinline__ ResultWalk(const ForwardArguments<T>& args, const BlockPlace& place,
                                        const TileRoute& route)
      : route(route),
        walk(static_cast<char*>(args.out.data), args.out.pixel * size_of_result(args), route),
        wide(args.out_dtype == DType::kFloat32) {
    walk.first += (place.image * args.out.batch + lane_channel(args, place)) * size_of_result(args);
  }
  __device__ __forceinline__ static int size_of_result(const ForwardArguments<T>& args) {
    return args.out_dtype == DType::kFloat32 ? sizeof(float) : sizeof(T);
  }
  // The first `valid` steps of a segment, of sums that count in units of ln 2.
  __device__ __forceinline__ void write(const SegmentCursor& here, int valid,
                                        const float2 (&sums)[kGpuSegmentSteps]) const {
    char* const begin = walk.at(route, here.line, here.part);
    const int step = walk.step(route);
    const auto each = [&](const auto& store) {
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t)
        if (t < valid) store(offset_bytes(begin, t, step), kLn2 * sums[t].x, kLn2 * sums[t].y);
    };
    if (wide)
      each([](char* at, float x, float y) { *reinterpret_cast<float2*>(at) = make_float2(x, y); });
    else
      each([](char* at, float x, float y) {
        *reinterpret_cast<uint32_t*>(at) = pair_from_floats<T>(x, y);
      });
  }
};

}  // namespace linescan
