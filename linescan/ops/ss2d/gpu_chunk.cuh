// A chunk: kGpuSegments consecutive segments of a route for the 16 channels of a block, spread over a warp.
//
// Lane 4 g + q owns channels 2g and 2g + 1 on segment q. A pixel's record
// (dts, B, C) is a column of a matrix; multiplied by the rows of dt_weight it gives delta, by rows
// with a single one B and C, each in the lane that scans them: column 2q + i of product j is step
// 2j + i of segment q.
#pragma once

#include "linescan/ops/device_code/product.cuh"
#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/ss2d/gpu_arguments.cuh"

namespace linescan {

inline constexpr int kGpuProducts = 4;  // of 8 columns, a chunk: two steps of each segment
static_assert(kGpuSegmentSteps <= 2 * kGpuProducts && kGpuLineSteps <= 2 * kGpuProducts);
inline constexpr int kDepth = 16;  // numbers of a record a product

// What a lane reads ahead of one chunk; records are read when they are used.
template <typename T, int kSteps>
struct ChunkInput {
  Segment<kSteps> segment;  // the lane's
  T x[kSteps][2];
};

// A lane's view of the block's problem on one route.
template <typename T, int kSteps>
struct LaneRoute {
  const Ss2dGpuArguments<T>& args;
  const SegmentedRoute<kSteps>& route;
  const T* x;            // of the image and the lane's first channel
  int64_t next_channel;  // from there to the second
  const T* records;      // of the image and route
  int g, q;

  __device__ __forceinline__ LaneRoute(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                       const SegmentedRoute<kSteps>& route, int k)
      : args(args), route(route), g(threadIdx.x % 32 / 4), q(threadIdx.x % 4) {
    // Channels past the end read others' data and are never stored.
    const int channel = min(place.group * kGpuChannels + 2 * g, args.channels - 1);
    x = args.x.data + place.image * args.x.batch + channel * args.x.channel;
    next_channel = channel + 1 < args.channels ? args.x.channel : 0;
    records =
        args.projection +
        place.image * static_cast<int64_t>(args.height) * args.width * args.routes * args.record +
        static_cast<int64_t>(k) * args.record;
  }

  // The segment that this lane's column of the records belongs to; the column of product j is step
  // record_step(j) of it.
  __device__ __forceinline__ Segment<kSteps> record_segment(int chunk) const {
    return Segment<kSteps>(route, chunk * kGpuSegments + (g >> 1));
  }
  __device__ __forceinline__ int record_step(int j) const { return 2 * j + (g & 1); }

  __device__ __forceinline__ void load(ChunkInput<T, kSteps>& input, int chunk) const {
    const Segment<kSteps> own(route, chunk * kGpuSegments + q);
    input.segment = own;
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
      const T* at = x + (own.first_pixel(route) + own.clamp(t) * route.pixel_step) * args.x.pixel;
      input.x[t][0] = at[0];
      input.x[t][1] = at[next_channel];
    }
  }

  // One number of the record at a step, or 0 past its end.
  __device__ __forceinline__ float record_number(const Segment<kSteps>& segment, int t,
                                                 int k) const {
    const int64_t pixel = segment.first_pixel(route) + segment.clamp(t) * route.pixel_step;
    return k < args.record ? to_float(records[pixel * args.routes * args.record + k]) : 0.0f;
  }
  // Part `part` of the records' columns of product j.
  __device__ __forceinline__ FragmentB<T> read_part(int chunk, int j, int part) const {
    const Segment<kSteps> segment = record_segment(chunk);
    FragmentB<T> fragment;
    fragment.fill([&](int i) {
      return record_number(segment, record_step(j), part * kDepth + fragment_k(q, i));
    });
    return fragment;
  }
};

// The rows of dt_weight that belong to a block's channels, as matrix A: row g is channel 2g, row
// g + 8 channel 2g + 1. Read when used; a float32 weight beside half data is cut into two halves.
template <typename T>
struct RouteWeights {
  const BlockPlace* place;
  int k;

  __device__ __forceinline__ RouteWeights(const BlockPlace& place, int k) : place(&place), k(k) {}

  __device__ __forceinline__ float weight(const Ss2dGpuArguments<T>& args, int part, int row,
                                          int i) const {
    const int channel = place->group * kGpuChannels + 2 * (threadIdx.x % 32 / 4) + row;
    const int r = part * kDepth + fragment_k(threadIdx.x % 4, i);
    if (channel >= args.channels || r >= args.rank) return 0.0f;
    const int64_t at = (static_cast<int64_t>(k) * args.channels + channel) * args.rank + r;
    return args.float_weight ? args.float_weight[at] : to_float(args.dt_weight[at]);
  }

  // Calls take(t, delta of channel 2g, of channel 2g + 1) for the steps t of the lane's segment.
  template <int kSteps, class Take>
  __device__ __forceinline__ void multiply(const LaneRoute<T, kSteps>& lane, int chunk,
                                           const float (&bias)[2], const Take& take) const {
    float delta[kGpuProducts][4];
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j)
      for (int i = 0; i < 4; ++i) delta[j][i] = bias[i >> 1];
    for (int part = 0; part * kDepth < lane.args.rank; ++part) {
      FragmentA<T> rows, rest;
      rows.fill([&](int row, int i) { return weight(lane.args, part, row, i); });
      const bool split = sizeof(T) == 2 && lane.args.float_weight != nullptr;
      if (split)
        rest.fill([&](int row, int i) {
          const float value = weight(lane.args, part, row, i);
          return value - to_float(from_float<T>(value));
        });
#pragma unroll
      for (int j = 0; j < kGpuProducts; ++j) {
        const FragmentB<T> record = lane.read_part(chunk, j, part);
        linescan::multiply(delta[j], rows, record, delta[j]);
        if (split) linescan::multiply(delta[j], rest, record, delta[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      take(2 * j, delta[j][0], delta[j][2]);
      take(2 * j + 1, delta[j][1], delta[j][3]);
    }
  }
};

// B and C of one state at the lane's steps.
template <typename T, int kSteps>
__device__ __forceinline__ void read_factors(const LaneRoute<T, kSteps>& lane,
                                             const Segment<kSteps>& segment, int n,
                                             float (&B)[2 * kGpuProducts],
                                             float (&C)[2 * kGpuProducts]) {
  const int stride = lane.args.routes * lane.args.record;
  const T* first = lane.records + static_cast<int64_t>(segment.first_pixel(lane.route)) * stride +
                   lane.args.rank + n;
  const int64_t distance = static_cast<int64_t>(lane.route.pixel_step) * stride;
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    const T* at = first + segment.clamp(t) * distance;
    B[t] = to_float(at[0]);
    C[t] = to_float(at[lane.args.states]);
  }
}

}  // namespace linescan
