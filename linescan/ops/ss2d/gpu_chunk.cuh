// A chunk: kGpuChunk consecutive steps of a route for the 16 channels of a block, spread over a warp.
//
// Lane 4 g + q owns channels 2g and 2g + 1 on segment q of kGpuSegmentSteps steps. A pixel's record
// (dts, B, C) is a column of a matrix; multiplied by the rows of dt_weight it gives delta, by rows
// with a single one B and C, each in the lane that scans them: column 2q + i of product j is step
// 2j + i of segment q.
#pragma once

#include "linescan/ops/device_code/product.cuh"
#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/ss2d/gpu_arguments.cuh"

namespace linescan {

inline constexpr int kGpuProducts = (kGpuSegmentSteps + 1) / 2;  // of 8 columns, a chunk
inline constexpr int kDepth = 16;                                // numbers of a record a product

// What a lane reads of one chunk: x of its two channels, and its share of the records' columns. kHeld:
// parts of kDepth numbers that a record has; they are kept in registers, and every access is a packed
// one. 0: any number of parts, read when they are used, and any layout of x.
template <typename T, int kHeld>
struct ChunkInput {
  Segment segment;  // the lane's
  T x[kGpuSegmentSteps][2];
  FragmentB<T> records[kGpuProducts][kHeld > 0 ? kHeld : 1];
};

// A lane's view of the block's problem on one route.
template <typename T, int kHeld>
struct LaneRoute {
  const Ss2dGpuArguments<T>& args;
  const TileRoute& route;
  const T* x;            // of the image and the lane's first channel
  int64_t next_channel;  // from there to the second
  const T* records;      // of the image and route
  int g, q;
  // kHeld > 0. Bytes from step to step and from line to line; of the last part's words in a record,
  // of which those past its end repeat the last.
  int x_step, x_line, record_step_bytes, record_line, last_offsets[2];

  __device__ __forceinline__ LaneRoute(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                       const TileRoute& route, int k)
      : args(args), route(route), g(threadIdx.x % 32 / 4), q(threadIdx.x % 4) {
    // Channels past the end read others' data and are never stored.
    const int last = args.channels - (kHeld > 0 ? 2 : 1);
    const int channel = min(place.group * kGpuChannels + 2 * g, last);
    x = args.x.data + place.image * args.x.batch + channel * args.x.channel;
    next_channel = channel + 1 < args.channels ? args.x.channel : 0;
    records =
        args.projection +
        place.image * static_cast<int64_t>(args.height) * args.width * args.routes * args.record +
        static_cast<int64_t>(k) * args.record;
    if constexpr (kHeld > 0) {
      const int pixel = static_cast<int>(args.x.pixel * sizeof(T));
      const int record = static_cast<int>(args.routes * args.record * sizeof(T));
      x = offset_bytes(x, route.pixel_origin, pixel);
      records = offset_bytes(records, route.pixel_origin, record);
      x_step = route.pixel_step * pixel;
      x_line = route.pixel_line * pixel;
      record_step_bytes = route.pixel_step * record;
      record_line = route.pixel_line * record;
      for (int i = 0; i < 2; ++i)
        last_offsets[i] = static_cast<int>(
            min((kHeld - 1) * kDepth + 2 * q + 8 * i, args.record - 2) * sizeof(T));
      for (int* number : {&x_step, &x_line, &record_step_bytes, &record_line}) keep(*number);
    }
  }

  // The segment that this lane's column of the records belongs to; the column of product j is step
  // record_step(j) of it.
  __device__ __forceinline__ Segment record_segment(int chunk) const {
    return Segment(route, chunk * kGpuSegments + (g >> 1));
  }
  __device__ __forceinline__ int record_step(int j) const { return 2 * j + (g & 1); }

  __device__ __forceinline__ void load(ChunkInput<T, kHeld>& input, int chunk) const {
    const Segment own(route, chunk * kGpuSegments + q);
    input.segment = own;
    if constexpr (kHeld == 0) {
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        const T* at = x + (own.first_pixel(route) + own.clamp(t) * route.pixel_step) * args.x.pixel;
        input.x[t][0] = at[0];
        input.x[t][1] = at[next_channel];
      }
    } else {
      const T* first = offset_bytes(offset_bytes(x, own.line, x_line), own.position, x_step);
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        const T* at = offset_bytes(first, own.clamp(t), x_step);
        const unsigned both = __ldg(reinterpret_cast<const unsigned*>(at));
        memcpy(input.x[t], &both, sizeof(both));
      }
      const Segment segment = record_segment(chunk);
      const T* line = offset_bytes(records, segment.line, record_line);
#pragma unroll
      for (int j = 0; j < kGpuProducts; ++j) {
        const T* at =
            offset_bytes(line, segment.position + segment.clamp(record_step(j)), record_step_bytes);
#pragma unroll
        for (int part = 0; part < kHeld; ++part)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const T* word = part < kHeld - 1 ? at + part * kDepth + 2 * q + 8 * i
                                             : offset_bytes(at, last_offsets[i], 1);
            input.records[j][part].words[i] = __ldg(reinterpret_cast<const unsigned*>(word));
          }
      }
    }
  }

  // One number of the record at a step, or 0 past its end.
  __device__ __forceinline__ float record_number(const Segment& segment, int t, int k) const {
    const int64_t pixel = segment.first_pixel(route) + segment.clamp(t) * route.pixel_step;
    return k < args.record ? to_float(records[pixel * args.routes * args.record + k]) : 0.0f;
  }
  // Part `part` of the records' columns of product j; for kHeld == 0.
  __device__ __forceinline__ FragmentB<T> read_part(int chunk, int j, int part) const {
    const Segment segment = record_segment(chunk);
    FragmentB<T> fragment;
    fragment.fill([&](int i) {
      return record_number(segment, record_step(j), part * kDepth + fragment_k(q, i));
    });
    return fragment;
  }
};

// The rows of dt_weight that belong to a block's channels, as matrix A: row g is channel 2g, row
// g + 8 channel 2g + 1. Kept in registers with the records (kHeld), else read when used; then a
// float32 weight beside half data is cut into two halves.
template <typename T, int kHeld>
struct RouteWeights {
  FragmentA<T> parts[kHeld > 0 ? kHeld : 1];
  const BlockPlace* place;
  int k;

  __device__ __forceinline__ RouteWeights(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                          int k)
      : place(&place), k(k) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int part = 0; part < kHeld; ++part)
        parts[part].fill([&](int row, int i) { return weight(args, part, row, i); });
    }
  }

  __device__ __forceinline__ float weight(const Ss2dGpuArguments<T>& args, int part, int row,
                                          int i) const {
    const int channel = place->group * kGpuChannels + 2 * (threadIdx.x % 32 / 4) + row;
    const int r = part * kDepth + fragment_k(threadIdx.x % 4, i);
    if (channel >= args.channels || r >= args.rank) return 0.0f;
    const int64_t at = (static_cast<int64_t>(k) * args.channels + channel) * args.rank + r;
    return args.float_weight ? args.float_weight[at] : to_float(args.dt_weight[at]);
  }

  // Calls take(t, delta of channel 2g, of channel 2g + 1) for the steps t of the lane's segment.
  template <class Take>
  __device__ __forceinline__ void multiply(const LaneRoute<T, kHeld>& lane,
                                           const ChunkInput<T, kHeld>& input, int chunk,
                                           const float (&bias)[2], const Take& take) const {
    const float start[4] = {bias[0], bias[0], bias[1], bias[1]};
    float delta[kGpuProducts][4];
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int j = 0; j < kGpuProducts; ++j) {
        linescan::multiply(delta[j], parts[0], input.records[j][0], start);
#pragma unroll
        for (int part = 1; part < kHeld; ++part)
          linescan::multiply(delta[j], parts[part], input.records[j][part], delta[j]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kGpuProducts; ++j)
        for (int i = 0; i < 4; ++i) delta[j][i] = start[i];
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
    }
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      take(2 * j, delta[j][0], delta[j][2]);
      take(2 * j + 1, delta[j][1], delta[j][3]);
    }
  }
};

// The rows that pick B and C out of a record, as matrix A: number `index_B` for rows below 8,
// `index_C` for the others.
template <typename T>
__device__ __forceinline__ FragmentA<T> selector(int index_B, int index_C) {
  FragmentA<T> result;
  result.fill([&](int row, int i) {
    return fragment_k(threadIdx.x % 4, i) == (row ? index_C : index_B) ? 1.0f : 0.0f;
  });
  return result;
}

// B and C of one state at the lane's steps. With kHeld > 0 both are in the last part of the record
// (held_parts), and there is one state; else every lane reads its own steps' numbers.
template <typename T, int kHeld>
struct FactorRows {
  FragmentA<T> rows;

  __device__ __forceinline__ explicit FactorRows(const Ss2dGpuArguments<T>& args) {
    if constexpr (kHeld > 0) rows = selector<T>(args.rank % kDepth, args.rank % kDepth + 1);
  }

  __device__ __forceinline__ void multiply(const LaneRoute<T, kHeld>& lane,
                                           const ChunkInput<T, kHeld>& input, int n,
                                           float (&B)[2 * kGpuProducts],
                                           float (&C)[2 * kGpuProducts]) const {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int j = 0; j < kGpuProducts; ++j) {
        constexpr float kZero[4] = {};
        float both[4];
        multiply_selector(both, rows, input.records[j][kHeld - 1], kZero);
        B[2 * j] = both[0];
        B[2 * j + 1] = both[1];
        C[2 * j] = both[2];
        C[2 * j + 1] = both[3];
      }
    } else {
      const Segment& segment = input.segment;
      const int stride = lane.args.routes * lane.args.record;
      const T* first = lane.records +
                       static_cast<int64_t>(segment.first_pixel(lane.route)) * stride +
                       lane.args.rank + n;
      const int64_t distance = static_cast<int64_t>(lane.route.pixel_step) * stride;
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        const T* at = first + segment.clamp(t) * distance;
        B[t] = to_float(at[0]);
        C[t] = to_float(at[lane.args.states]);
      }
    }
  }
};

// How many parts of a record the kernels may keep in registers (kHeld); 0: none.
template <typename T>
int held_parts(const Ss2dGpuArguments<T>& args) {
  constexpr int kMost = 5;
  const int last = args.rank / kDepth;
  const bool together = (args.rank + 1) / kDepth == last;
  const bool near = static_cast<int64_t>(args.width) *
                        std::max<int64_t>(args.x.pixel, args.routes * args.record) <
                    (int64_t{1} << 28);
  return sizeof(T) == 2 && args.states == 1 && args.packed && !args.float_weight && together &&
                 near && last < kMost
             ? last + 1
             : 0;
}

}  // namespace linescan
