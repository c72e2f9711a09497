// What becomes of a segment of the packed forward kernels when the last route has added to it.
#pragma once

#include "linescan/ops/device_code/predicated.cuh"
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

template <typename T>
__device__ __forceinline__ int size_of_result(const ForwardArguments<T>& args) {
  return args.out_dtype == DType::kFloat32 ? sizeof(float) : sizeof(T);
}
// That of the lane's channels at pixel 0.
template <typename T>
__device__ __forceinline__ char* first_result(const ForwardArguments<T>& args,
                                              const BlockPlace& place) {
  const int64_t number = place.image * args.out.batch + lane_channel(args, place);
  return static_cast<char*>(args.out.data) + number * size_of_result(args);
}

// Writes the lane's two channels at the first `valid` steps of a segment, `step` bytes apart, of sums that count in units of
// ln 2: float32 (`wide`) or T.
template <typename T, int kSteps>
__device__ __forceinline__ void write_results(char* begin, int step, bool wide, int valid,
                                              const float2 (&sums)[kSteps]) {
  const auto each = [&](const auto& store) {
#pragma unroll
    for (int t = 0; t < kSteps; ++t)
      store(t < valid, offset_bytes(begin, t, step), kLn2 * sums[t].x, kLn2 * sums[t].y);
  };
  if (wide)
    each([](bool yes, char* at, float x, float y) {
      store_if(yes, reinterpret_cast<float2*>(at), make_float2(x, y));
    });
  else
    each([](bool yes, char* at, float x, float y) {
      store_if(yes, reinterpret_cast<uint32_t*>(at), pair_from_floats<T>(x, y));
    });
}

// Where they go on one route.
template <typename T>
struct ResultWalk {
  const ChunkRoute& route;
  PlaneWalk<char> walk;
  bool wide;

  __device__ __forceinline__ ResultWalk(const ForwardArguments<T>& args, const BlockPlace& place,
                                        const ChunkRoute& route)
      : route(route),
        walk(first_result(args, place), args.out.pixel * size_of_result(args), route),
        wide(args.out_dtype == DType::kFloat32) {}
  __device__ __forceinline__ void write(const SegmentCursor& here, int valid,
                                        const float2 (&sums)[kGpuSegmentSteps]) const {
    write_results<T>(walk.at(route, here.line, here.part), walk.step(route), wide, valid, sums);
  }
};

}  // namespace linescan
