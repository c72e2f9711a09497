// Lines walked by a lane each, for the packed kernels on planes of several tiles, where the state that enters
// every line of a tile is known or does not matter: nothing crosses lanes, and no warp waits for another.
//
// As in gpu_packed.cuh lane 4 g + q owns two channels and one of four neighbours, here lines; it walks along its
// line a segment after another. All lines of a tile are equally long: only the last segment of each may lack steps.
#pragma once

#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

// What a lane reads of its line: the records, and its channels of another tensor (x or the result's gradient),
// of the segment that it is at.
template <typename T, typename Input, int kHalves>
struct LineReader {
  const TileRoute& route;
  RecordWalk<T, kHalves, false> record_walk;
  PlaneWalk<const Input> input_walk;
  SegmentCursor own, column;  // of the lane's line, and of that whose records it multiplies
  bool exists = false;        // whether the lane's line does; else it repeats the last one
  RecordColumns<T, kHalves> records;
  Two<Input> values[kGpuSegmentSteps];

  // `input`: the image and the lane's channels.
  __device__ __forceinline__ LineReader(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                        const TileRoute& route, int k, const Input* input,
                                        int64_t input_pixel)
      : route(route), record_walk(args, place, route, k), input_walk(input, input_pixel, route) {}

  __device__ __forceinline__ int groups() const {
    return (route.lines + kGpuSegments - 1) / kGpuSegments;
  }
  // Whether a segment has all steps.
  __device__ __forceinline__ bool whole(int part) const {
    return (part + 1) * kGpuSegmentSteps <= route.length;
  }
  // Goes to segment `part` of four lines.
  __device__ __forceinline__ void start(int group, int part) {
    const int q = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    exists = group * kGpuSegments + q < route.lines;
    own.line = min(group * kGpuSegments + q, route.lines - 1);
    column.line = min(group * kGpuSegments + g / 2, route.lines - 1);
    read(part);
  }
  __device__ __forceinline__ void read(int part) {
    own.part = column.part = part;
    whole(part) ? load<true>() : load<false>();
  }

 private:
  template <bool kWhole>
  __device__ __forceinline__ void load() {
    record_walk.template load<kWhole>(records, route, column);
    load_steps<kWhole>(values, input_walk, route, own);
  }
};

}  // namespace linescan
