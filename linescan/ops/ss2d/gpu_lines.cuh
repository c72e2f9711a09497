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

// A tensor of planes along a lane's line, from the steps that it is at.
template <typename Element>
struct LineWalk {
  Element* at;
  int step;  // bytes from step to step

  LineWalk() = default;
  // first: at the first step of the route's first line; pixel: numbers from pixel to pixel.
  __device__ __forceinline__ LineWalk(Element* first, int64_t pixel, const TileRoute& route,
                                      int line, int position) {
    const int bytes = static_cast<int>(pixel * sizeof(Element));
    step = route.pixel_step * bytes;
    keep_in_lane(step);
    at = offset_bytes(offset_bytes(first, line, route.pixel_line * bytes), position, step);
  }
  __device__ __forceinline__ void move(int steps) { at = offset_bytes(at, steps, step); }
  __device__ __forceinline__ Element* ahead(int steps) const {
    return offset_bytes(at, steps, step);
  }
};

// Where the numbers of a block's image begin: of its first channel, at pixel 0.
template <typename Element>
__device__ __forceinline__ Element* first_of_block(const BlockPlace& place,
                                                   const GpuPlanes<Element>& planes) {
  return planes.data + place.image * planes.batch + place.group * kGpuChannels;
}
// The record of a route's first step.
template <typename T>
__device__ __forceinline__ const T* first_record(const Ss2dGpuArguments<T>& args,
                                                 const BlockPlace& place, const TileRoute& route,
                                                 int k) {
  const int64_t pixels = place.image * args.height * args.width + route.pixel_origin;
  return args.projection + (pixels * args.routes + k) * args.record;
}
// The first of a lane's channels, counted from the block's first one.
template <typename T>
__device__ __forceinline__ int own_channel(const Ss2dGpuArguments<T>& args,
                                           const BlockPlace& place) {
  return lane_channel(args, place) - place.group * kGpuChannels;
}

// Calls use.operator()<kWhole>() for a segment of which `left` steps exist: whether all do.
template <class Use>
__device__ __forceinline__ void whole_or_part(int left, const Use& use) {
  left >= kGpuLineSteps ? use.template operator()<true>() : use.template operator()<false>();
}

// The lane's two channels at the steps of a segment, of which `left` exist; behind those, at the last one.
template <bool kWhole, typename Element>
__device__ __forceinline__ void load_steps(Two<Element> (&values)[kGpuLineSteps],
                                           const LineWalk<const Element>& walk, int left) {
#pragma unroll
  for (int t = 0; t < kGpuLineSteps; ++t)
    values[t] = read_two(walk.ahead(kWhole ? t : min(t, left - 1)));
}

// The line that a lane walks of the four of a group, and whether there is one: lanes behind the last one repeat it.
struct OwnLine {
  int number = 0;
  bool exists = false;

  OwnLine() = default;
  __device__ __forceinline__ OwnLine(const TileRoute& route, int group) {
    const int own = group * kGpuSegments + static_cast<int>(threadIdx.x) % 4;
    number = min(own, route.lines - 1);
    exists = own < route.lines;
  }
};

// The records along the lines of a warp: a lane's columns of them at the segment that it is at.
template <typename T, int kHalves>
struct LineRecords {
  RecordColumns<T, kHalves> columns;

  __device__ __forceinline__ explicit LineRecords(const Ss2dGpuArguments<T>& args)
      : words_(args.record, kHalves), odd_(threadIdx.x / 4 & 1) {}

  // Goes to step `position` of four lines of a route. first: the record of the route's first step.
  __device__ __forceinline__ void start(const Ss2dGpuArguments<T>& args, const TileRoute& route,
                                        const T* first, int group, int position) {
    const int line = group * kGpuSegments + static_cast<int>(threadIdx.x) % 32 / 8;
    walk_ = {first + words_.first, int64_t{args.routes} * args.record, route,
             min(line, route.lines - 1), position + odd_};
  }
  __device__ __forceinline__ void move(int steps) { walk_.move(steps); }
  // The segment's steps, of which `left` exist; behind those, the last one.
  template <bool kWhole>
  __device__ __forceinline__ void load(int left) {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j)
      columns.load(j, walk_.ahead(kWhole ? 2 * j : min(2 * j, left - 1 - odd_)), words_);
  }

 private:
  LineWalk<const T> walk_;
  RecordWords words_;
  int odd_;  // whether the lane's columns are odd steps
};

// What finds the effects of lines on the state that enters them, or, kBackward, on the gradient that comes back, from x or the result's gradient:
// a lane's segment of a line of the plane.
template <typename T, typename Input, int kHalves, bool kBackward>
struct LineTerms {
  PackedWeights<T, kHalves> weights;
  PackedFactors<T, kHalves> factors;
  LineRecords<T, kHalves> records;
  LineWalk<const Input> walk;
  Two<Input> values[kGpuLineSteps];
  float rate[2];  // -exp(A_log)

  // Of step `position` of the lines of `group`; `line` is the lane's.
  __device__ __forceinline__ LineTerms(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                       const TileRoute& route, int k, int group,
                                       const OwnLine& line, int position,
                                       const GpuPlanes<const Input>& input)
      : weights(args, place, k),
        factors(args),
        records(args),
        walk(first_of_block(place, input) + route.pixel_origin * input.pixel +
                 own_channel(args, place),
             input.pixel, route, line.number, position) {
    records.start(args, route, first_record(args, place, route, k), group, position);
    const int64_t row = static_cast<int64_t>(k) * args.channels + lane_channel(args, place);
    for (int i = 0; i < 2; ++i) rate[i] = -exp2_approx(kLog2e * args.A_log[row + i]);
  }
  // The segment at hand, of which `left` steps exist.
  template <bool kWhole>
  __device__ __forceinline__ void load(int left) {
    records.template load<kWhole>(left);
    load_steps<kWhole>(values, walk, left);
  }
  __device__ __forceinline__ void load(int left) {
    left >= kGpuLineSteps ? load<true>(left) : load<false>(left);
  }
  __device__ __forceinline__ void move(int steps) {
    records.move(steps);
    walk.move(steps);
  }
  // What softplus makes its steps' sizes of, and what goes with a size into the state: x B; or into the gradient: gy C.
  __device__ __forceinline__ void multiply(float (&delta)[kGpuLineSteps][2],
                                           float (&terms)[kGpuLineSteps][2]) const {
    float B[kGpuLineSteps], C[kGpuLineSteps];
    weights.multiply(records.columns, delta);
    factors.multiply(records.columns, B, C);
#pragma unroll
    for (int t = 0; t < kGpuLineSteps; ++t)
      for (int c = 0; c < 2; ++c) terms[t][c] = values[t][c] * (kBackward ? C[t] : B[t]);
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
