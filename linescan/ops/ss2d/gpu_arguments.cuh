// What the ss2d kernels are given, and how a block finds its part of it.
#pragma once

#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/ss2d/gpu_plan.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan {

// A plane tensor [batch, channels, pixels] with strides in elements.
template <typename T>
struct GpuPlanes {
  T* data;
  int64_t batch, channel, pixel;
};

// Everything contiguous that is not GpuPlanes. Sizes as in Ss2dProblem.
template <typename T>
struct Ss2dGpuArguments {
  GpuPlanes<const T> x;
  const T* projection;  // [batch, pixels, routes * record]
  const T* dt_weight;   // [routes, channels, rank]; null: float_weight
  const float* float_weight;
  const float* dt_bias;  // [routes, channels]
  const float* A_log;    // [routes * channels, states]
  const float* D;        // [routes * channels]
  int height, width, channels, channel_groups, states, rank, record, routes;
  int tile_height, tile_width, tile_rows, tile_columns, sum_pitch;
  int64_t pieces, first_image;
  int64_t state_rows;  // of a block and route in a StateTable
  float* carries;      // [blocks, kGpuCarryFloats * states]; null: in shared memory
  // Of planes in cells, [slots, routes, lines, segments of eight steps, channels] of (factor, offset): what leads to each segment from
  // its line's begin, or, walking back, from its end. Else null.
  float2* segments = nullptr;
  bool packed;  // two neighbouring channels of x, or numbers of a record, are one aligned access
  unsigned char codes[kGpuMaxRoutes];

  // Whether a StateTable has a row for each segment instead of each chunk.
  __device__ __forceinline__ bool keeps_segments() const { return pieces > 0 && states == 1; }
};

// The block's part of `carries`.
template <typename T>
__device__ __forceinline__ float* carries_of_block(const Ss2dGpuArguments<T>& args) {
  return args.carries ? args.carries + blockIdx.x * (kGpuCarryFloats * args.states) : nullptr;
}

// The number of a block, taken apart: how far along it is in one dimension after another, the innermost first.
struct BlockNumber {
  unsigned rest = blockIdx.x;

  __device__ __forceinline__ int take(int count) {
    const unsigned quotient = rest / count;
    const auto number = static_cast<int>(rest - quotient * count);
    rest = quotient;
    return number;
  }
};

// The tile of the plane and the channels that a block owns.
struct BlockPlace {
  int64_t image, slot;  // of the batch; of the slice that this launch works through
  int group, tile_row, tile_column;
  int top, left, height, width;
  int pitch;  // places between rows of the block's sums in shared memory

  template <typename T>
  __device__ __forceinline__ explicit BlockPlace(const Ss2dGpuArguments<T>& args) {
    BlockNumber number;
    group = number.take(args.channel_groups);  // neighbours share the records
    tile_column = number.take(args.tile_columns);
    tile_row = number.take(args.tile_rows);
    slot = number.rest;
    image = args.first_image + slot;
    top = tile_row * args.tile_height;
    left = tile_column * args.tile_width;
    height = min(args.tile_height, args.height - top);
    width = min(args.tile_width, args.width - left);
    pitch = args.sum_pitch;
  }
  // All of the plane of image `slot`, with nothing between the rows of sums.
  template <typename T>
  __device__ __forceinline__ BlockPlace(const Ss2dGpuArguments<T>& args, int64_t slot, int group)
      : image(args.first_image + slot),
        slot(slot),
        group(group),
        tile_row(0),
        tile_column(0),
        top(0),
        left(0),
        height(args.height),
        width(args.width),
        pitch(args.width) {}
};

// The order in which a route walks through a tile, and where its lines are in the whole plane.
struct TileRoute {
  int lines, length;
  int sum_step, sum_line, sum_origin;        // distances and first step in the block's sums
  int pixel_step, pixel_line, pixel_origin;  // and in the plane
  int64_t first_piece, pieces_a_line;        // piece of line l: first_piece + l * pieces_a_line
  bool restart;

  template <typename T>
  __device__ __forceinline__ TileRoute(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                       int code) {
    const bool columns = code & kColumnMajor, back = code & kReverseInLine;
    const bool up = code & kReverseLines;
    restart = code & kRestart;
    lines = columns ? place.width : place.height;
    length = columns ? place.height : place.width;
    sum_step = columns ? place.pitch : 1;
    sum_line = columns ? 1 : place.pitch;
    pixel_step = columns ? args.width : 1;
    pixel_line = columns ? 1 : args.width;
    sum_origin = 0;
    pixel_origin = place.top * args.width + place.left;
    // Lines before this tile's first one, and this tile's number along a line.
    const int all = columns ? args.width : args.height, start = columns ? place.left : place.top;
    const int tiles = columns ? args.tile_rows : args.tile_columns;
    const int tile = columns ? place.tile_row : place.tile_column;
    pieces_a_line = tiles;
    const int64_t first_line = up ? all - start - lines : start;
    first_piece = first_line * tiles + (back ? tiles - 1 - tile : tile);
    if (back) {
      sum_origin += (length - 1) * sum_step;
      pixel_origin += (length - 1) * pixel_step;
      sum_step = -sum_step;
      pixel_step = -pixel_step;
    }
    if (up) {
      sum_origin += (lines - 1) * sum_line;
      pixel_origin += (lines - 1) * pixel_line;
      sum_line = -sum_line;
      pixel_line = -pixel_line;
    }
    for (int* number : {&length, &sum_step, &sum_line, &sum_origin}) keep(*number);
  }
};

// Its lines cut into segments of kSteps steps (the last of a line may be shorter), whose steps are a constant distance apart.
template <int kSteps>
struct SegmentedRoute : TileRoute {
  int segments_a_line, segments;
  int inverse;  // 2^31 / segments_a_line, unsigned

  template <typename T>
  __device__ __forceinline__ SegmentedRoute(const Ss2dGpuArguments<T>& args,
                                            const BlockPlace& place, int code)
      : TileRoute(args, place, code) {
    segments_a_line = (length + kSteps - 1) / kSteps;
    inverse = static_cast<int>(static_cast<unsigned>(0x1p31f * reciprocal_approx(segments_a_line)));
    segments = lines * segments_a_line;
    for (int* number : {&segments_a_line, &segments, &inverse}) keep(*number);
  }
  // The line of a segment: index + 1/2, by the approximate inverse, is far enough from the next one's for a million.
  __device__ __forceinline__ int line_of(int index) const {
    return static_cast<int>(__umulhi(2 * index + 1, inverse));
  }
  // Places from the route's first step to that of a segment, in the plane.
  __device__ __forceinline__ int pixels_to(int line, int part) const {
    return line * pixel_line + part * (kSteps * pixel_step);
  }
  __device__ __forceinline__ int chunks() const {
    return (segments + kGpuSegments - 1) / kGpuSegments;
  }
};
using ChunkRoute = SegmentedRoute<kGpuSegmentSteps>;  // of planes of one tile

// One segment of a route. Behind the last one there is more of it, without valid steps.
template <int kSteps>
struct Segment {
  int line, position;  // of its first step
  int valid;           // steps that it has

  Segment() = default;
  __device__ __forceinline__ Segment(const SegmentedRoute<kSteps>& route, int index) {
    const int inside = min(index, route.segments - 1);
    line = route.line_of(inside);
    position = (inside - line * route.segments_a_line) * kSteps;
    valid = index == inside ? min(kSteps, route.length - position) : 0;
  }
  __device__ __forceinline__ int sum(const TileRoute& route) const {
    return route.sum_origin + line * route.sum_line + position * route.sum_step;
  }
  __device__ __forceinline__ int first_pixel(const TileRoute& route) const {
    return route.pixel_origin + line * route.pixel_line + position * route.pixel_step;
  }
  // Step t, or a valid one instead of those beyond the end.
  __device__ __forceinline__ int clamp(int t) const { return max(0, min(t, valid - 1)); }
};

}  // namespace linescan
