// Lines walked by a lane each, for the packed kernels on planes of several tiles, where the state that enters
// every line of a tile is known or does not matter: nothing crosses lanes, and no warp waits for another.
//
// As in gpu_packed.cuh lane 4 g + q owns two channels and one of four neighbours, here lines; it walks along its
// line a segment of kGpuLineSteps after another. Most segments are whole: sides that are cut are multiples of those where
// there is room for more than eight places.
#pragma once

#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

static_assert(kGpuLineSteps == 2 * kGpuProducts);

// Makes the assembler keep a number in every lane: what the whole warp has once is copied for every use by which lanes differ. Of
// numbers below 2^31 - 32, which are their own minimum with what differs from lane to lane.
__device__ __forceinline__ void keep_in_lane(int& number) {
  number = min(number, 0x7FFFFFFF - static_cast<int>(threadIdx.x) % 32);
}

// A tensor of planes along a lane's line, from the segment that it is at.
template <typename Element>
struct LineWalk {
  Element *first, *at;
  int step, line;  // bytes from step to step, from line to line

  // `first`: at the first step of the first line. pixel: numbers from pixel to pixel.
  __device__ __forceinline__ LineWalk(Element* first, int64_t pixel, const TileRoute& route)
      : first(first), at(first) {
    const int bytes = static_cast<int>(pixel * sizeof(Element));
    step = route.pixel_step * bytes;
    line = route.pixel_line * bytes;
    keep_in_lane(step);
  }
  __device__ __forceinline__ void start(int line_number, int position) {
    at = offset_bytes(offset_bytes(first, line_number, line), position, step);
  }
  __device__ __forceinline__ void move(int steps) { at = offset_bytes(at, steps, step); }
  __device__ __forceinline__ Element* ahead(int steps) const {
    return offset_bytes(at, steps, step);
  }
};

// Where it begins for a lane's channels.
template <typename T, typename Element>
__device__ __forceinline__ LineWalk<Element> channels_walk(const Ss2dGpuArguments<T>& args,
                                                           const BlockPlace& place,
                                                           const TileRoute& route,
                                                           const GpuPlanes<Element>& planes) {
  Element* const first = planes.data + place.image * planes.batch +
                         route.pixel_origin * planes.pixel + lane_channel(args, place);
  return {first, planes.pixel, route};
}

// The lane's two channels at the steps of a segment, of which `left` exist; behind those, at the last one.
template <bool kWhole, typename Element>
__device__ __forceinline__ void load_steps(Two<Element> (&values)[kGpuLineSteps],
                                           const LineWalk<const Element>& walk, int left) {
#pragma unroll
  for (int t = 0; t < kGpuLineSteps; ++t)
    values[t] = read_two(walk.ahead(kWhole ? t : min(t, left - 1)));
}
template <typename Element>
__device__ __forceinline__ void load_steps(Two<Element> (&values)[kGpuLineSteps],
                                           const LineWalk<const Element>& walk, int left) {
  left >= kGpuLineSteps ? load_steps<true>(values, walk, left)
                        : load_steps<false>(values, walk, left);
}

// What a lane reads of its line: the records, and its channels of another tensor (x or the result's gradient),
// of the segment that it is at.
template <typename T, typename Input, int kHalves>
struct LineReader {
  RecordColumns<T, kHalves> records;
  Two<Input> values[kGpuLineSteps];
  int line = 0;  // of the route; lanes behind the last one repeat it

  __device__ __forceinline__ LineReader(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                        const TileRoute& route, int k,
                                        const GpuPlanes<const Input>& input)
      : lines_(route.lines),
        record_walk_(first_record(args, place, route, k), int64_t{args.routes} * args.record,
                     route),
        value_walk_(channels_walk(args, place, route, input)),
        words_(args.record, kHalves),
        odd_(threadIdx.x / 4 & 1) {
    record_walk_.first += words_.first;
  }

  // Goes to step `position` of four lines. False: the lane has none.
  __device__ __forceinline__ bool start(int group, int position = 0) {
    const int q = threadIdx.x % 4, g = threadIdx.x % 32 / 4;
    const int own = group * kGpuSegments + q;
    line = min(own, lines_ - 1);
    value_walk_.start(line, position);
    record_walk_.start(min(group * kGpuSegments + g / 2, lines_ - 1), position + odd_);
    return own < lines_;
  }
  __device__ __forceinline__ void move(int steps) {
    value_walk_.move(steps), record_walk_.move(steps);
  }
  // The segment's steps, of which `left` exist; behind those, the last one.
  __device__ __forceinline__ void load(int left) {
    left >= kGpuLineSteps ? load<true>(left) : load<false>(left);
  }

 private:
  int lines_;
  LineWalk<const T> record_walk_;
  LineWalk<const Input> value_walk_;
  RecordWords words_;
  int odd_;  // whether the lane's columns are odd steps

  __device__ __forceinline__ static const T* first_record(const Ss2dGpuArguments<T>& args,
                                                          const BlockPlace& place,
                                                          const TileRoute& route, int k) {
    const int64_t pixels = place.image * args.height * args.width + route.pixel_origin;
    return args.projection + (pixels * args.routes + k) * args.record;
  }
  template <bool kWhole>
  __device__ __forceinline__ void load(int left) {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j)
      records.load(j, record_walk_.ahead(kWhole ? 2 * j : min(2 * j, left - 1 - odd_)), words_);
    load_steps<kWhole>(values, value_walk_, left);
  }
};

// The sums of a lane's channels along its line, from the segment that it is at.
class LineSums {
 public:
  __device__ __forceinline__ LineSums(const SumWalk& walk, int line, int position = 0)
      : at_(reinterpret_cast<float2*>(walk.first + line * walk.line + position * walk.step)),
        step_(walk.step / 2) {}
  __device__ __forceinline__ void move(int steps) { at_ += steps * step_; }
  // Of the segment: of all its steps (kWhole), or the first `valid`.
  template <bool kWhole>
  __device__ __forceinline__ SegmentSums<kWhole> segment(int valid) const {
    return {at_, step_, kWhole ? kGpuLineSteps : valid};
  }

 private:
  float2* at_;
  int step_;
};

}  // namespace linescan
