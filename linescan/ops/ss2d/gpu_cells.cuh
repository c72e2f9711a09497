// Planes of several tiles in cells of 8 x 8 pixels, for half data, one state and records of up to eight numbers: the state that enters
// every segment of eight steps is known (packed_segments.cu), so that a warp works on a cell, all routes one after another, and
// knows nothing of any other.
//
// A block owns a tile as elsewhere; a warp takes its cells from left to right. A route goes through a cell as two halves of four
// lines: as in gpu_packed.cuh lane 4 g + q owns channels 2g and 2g + 1, here on line q of a half. Pixels, and the sums that routes add to,
// are in the warp's own part of shared memory, where a route's lines and steps are distances in bytes: one loop serves all
// orders. What the block's routes begin with is found once, and so are their distances in memory.
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {

static_assert(kCellSide == 2 * kGpuProducts && kCellSide == 2 * kGpuSegments);

// Whether the kernels for cells can read or write planes: sixteen bytes at a time, a row within what offset_bytes() takes.
template <typename T>
bool whole_sixteens(const GpuPlanes<T>& planes, int64_t element_bytes, int64_t width) {
  const auto whole = [&](int64_t numbers) { return numbers * element_bytes % 16 == 0; };
  return planes.channel == 1 && whole(planes.pixel) && whole(planes.batch) &&
         reinterpret_cast<std::uintptr_t>(planes.data) % 16 == 0 &&
         width * planes.pixel * element_bytes < int64_t{1} << 28;
}
// And whether a problem is one for them, as the plan expected, if they can read and write the rest.
template <typename T>
bool packed_cells(const Ss2dGpuArguments<T>& args, const Ss2dGpuPlan& plan) {
  return plan.cells && packed_halves(args) == 1 && whole_sixteens(args.x, sizeof(T), args.width);
}

// Which cell of the block's tile a warp is at.
struct Cell {
  int row, column;
};

// Where the block's numbers are in a tensor along a route, in bytes: lanes add where theirs are.
struct alignas(16) CellWalk {
  const char* first;  // of the tile's first cell, on its first line
  int row, column;    // to the cells below and beside
  int line, step;     // to the next line, and, of records, the next step

  __device__ __forceinline__ const char* at(const Cell& cell, int number) const {
    return first + (cell.row * row + cell.column * column + number * line);
  }
};
// And in a cell in shared memory. swap, of sums: see there.
struct alignas(16) CellOrder {
  int first, line, step, swap;

  __device__ __forceinline__ int at(int number) const { return first + number * line; }
};

// Sums of a half at the lane's channels. Those of columns 2, 3, 6 and 7 have the halves of their sixteen floats swapped, or columns would meet
// in the same banks: along a column those of all steps or none (CellOrder::swap is kByLine), along a row those of every second pair, the
// first one's (kSwap) or not (0).
class CellSums {
 public:
  __device__ __forceinline__ CellSums(char* cell, const CellOrder& order, int line)
      : step_(order.step) {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const int by_line = order.swap / (kByLine / kSwap);  // kSwap or 0
    const int pair = g ^ ((order.swap ^ (swap_of(line) & by_line)) & kSwap);
    even_ = cell + order.at(line) + pair * 8;
    odd_ = cell + order.at(line) + (pair ^ kSwap ^ by_line) * 8;
  }
  __device__ __forceinline__ float2 read(int t) const { return *at(t); }
  __device__ __forceinline__ void write(int t, float2 sum) const { *at(t) = sum; }

  static constexpr int kSwap = 4, kByLine = 256 * kSwap;  // of the numbers of pairs of channels
  __device__ __forceinline__ static int swap_of(int column) { return column * (kSwap / 2) & kSwap; }

 private:
  char *even_, *odd_;
  int step_;

  __device__ __forceinline__ float2* at(int t) const {
    return reinterpret_cast<float2*>((t >> 1 & 1 ? odd_ : even_) + t * step_);
  }
};

// A route on the block's tile.
struct CellRoute {
  CellWalk
      segments;   // what leads to each segment from its line's begin, of Ss2dGpuArguments::segments
  CellWalk ends;  // what enters the lines or, walking back, comes back from behind them
  CellWalk states;  // of the StateTable; null: not wanted
  CellWalk records;
  CellOrder pixels, sums, own_records;

  // ends [slots, routes, pieces, channels].
  template <class Arguments>
  __device__ __forceinline__ CellRoute(const Arguments& args, const BlockPlace& place, int k,
                                       const float* all_ends) {
    const int code = args.codes[k];
    const bool across = code & kColumnMajor, back = code & kReverseInLine;
    const bool up = code & kReverseLines;
    const int lines = across ? args.width : args.height;
    const int parts = (across ? args.height : args.width) / kCellSide;
    // The tile's first line and part, counted as the route does, in the plane and in the tile.
    const int line = across ? place.left : place.top;
    const int part = (across ? place.top : place.left) / kCellSide;
    const int tile_lines = across ? place.width : place.height;
    const int tile_parts = (across ? place.height : place.width) / kCellSide;
    const int64_t first_line = up ? lines - 1 - line : line;
    const int64_t first_part = back ? parts - 1 - part : part;

    // line_bytes, part_bytes: from line to line, and from segment to segment of a line.
    const auto walk = [&](const void* data, int line_bytes, int part_bytes) {
      CellWalk made;
      made.line = up ? -line_bytes : line_bytes;
      const int by_lines = kCellSide * made.line, by_parts = back ? -part_bytes : part_bytes;
      made.row = across ? by_parts : by_lines;
      made.column = across ? by_lines : by_parts;
      made.step = 0;
      made.first = static_cast<const char*>(data);
      return made;
    };
    const int first_channel = place.group * kGpuChannels;
    const int64_t route = place.slot * args.routes + k;
    constexpr int kFloat = sizeof(float), kPair = sizeof(float2);
    segments =
        walk(args.segments + ((route * lines + first_line) * parts + first_part) * args.channels +
                 first_channel,
             parts * args.channels * kPair, args.channels * kPair);
    ends = walk(all_ends + (route * args.pieces + first_line) * args.channels + first_channel,
                args.channels * kFloat, 0);
    const int row = (up ? tile_lines - 1 : 0) * tile_parts + (back ? tile_parts - 1 : 0);
    states = walk(args.starts ? StateTable(args).at(k, row, 0, 0) : nullptr,
                  tile_parts * kGpuChannels * kFloat, kGpuChannels * kFloat);

    const int pixel_bytes = args.routes * args.record * static_cast<int>(sizeof(*args.projection));
    const int row_bytes = args.width * pixel_bytes;
    records.row = kCellSide * row_bytes;
    records.column = kCellSide * pixel_bytes;
    records.line = across ? pixel_bytes : row_bytes;
    const int record_step = across ? row_bytes : pixel_bytes;
    records.step = back ? -record_step : record_step;
    const int64_t pixel = (place.image * args.height + place.top) * args.width + place.left;
    records.first =
        reinterpret_cast<const char*>(args.projection + (pixel * args.routes + k) * args.record) +
        (back ? (kCellSide - 1) * record_step : 0);

    const auto order = [&](int from_row, int from_column) {
      CellOrder made;
      made.line = across ? from_column : from_row;
      const int step = across ? from_row : from_column;
      made.first = back ? (kCellSide - 1) * step : 0;
      made.step = back ? -step : step;
      made.swap = across ? CellSums::kByLine : back ? CellSums::kSwap : 0;
      return made;
    };
    pixels = order(kCellRow, kCellPixel);
    sums = order(kCellSumRow, kCellSumPixel);
    own_records = order(kCellRecordRow, kCellRecordPixel);
  }
};
static_assert(sizeof(CellRoute) == kCellRouteBytes);

// What a block's routes begin with, in shared memory: a CellRoute each, and for every lane its operands of the products with records, bias and
// rates.
template <typename T>
class CellRoutes {
 public:
  // `memory`: kCellRouteBytes + kCellLaneBytes for each route.
  __device__ __forceinline__ CellRoutes(unsigned char* memory, int routes)
      : routes_(reinterpret_cast<CellRoute*>(memory)),
        words_(reinterpret_cast<uint4*>(memory + routes * kCellRouteBytes) + threadIdx.x % 32) {}

  // By all warps, which meet behind it. columns(k): two more words of a lane.
  template <class Arguments, class Columns>
  __device__ __forceinline__ void prepare(const Arguments& args, const BlockPlace& place,
                                          const float* ends, const Columns& columns) {
    const int channel = place.group * kGpuChannels + 2 * (static_cast<int>(threadIdx.x) % 32 / 4);
    for (int k = static_cast<int>(threadIdx.x) / 32; k < args.routes; k += kCellWarps) {
      if (threadIdx.x % 32 == 0) routes_[k] = CellRoute(args, place, k, ends);
      const PackedWeights<T, 1> weights(args, place, k);
      const uint2 more = columns(k);
      const int64_t row = static_cast<int64_t>(k) * args.channels + channel;
      const auto rate = [&](int i) {
        return __float_as_uint(-exp2_approx(kLog2e * args.A_log[row + i]));
      };
      uint4* const to = words_ + k * kLaneWords;
      to[0] = make_uint4(weights.parts[0].words[0], weights.parts[0].words[1], more.x, more.y);
      to[32] = make_uint4(__float_as_uint(weights.bias[0]), __float_as_uint(weights.bias[1]),
                          rate(0), rate(1));
    }
  }
  __device__ __forceinline__ const CellRoute& route(int k) const { return routes_[k]; }

  struct Parameters {
    PackedWeights<T, 1> weights;
    float rate[2];
    uint32_t columns[2];
  };
  __device__ __forceinline__ Parameters parameters(int k) const {
    const uint4 words = words_[k * kLaneWords], numbers = words_[k * kLaneWords + 32];
    Parameters p;
    p.weights.parts[0] = {{words.x, words.y, 0, 0}};
    p.weights.bias[0] = __uint_as_float(numbers.x);
    p.weights.bias[1] = __uint_as_float(numbers.y);
    p.rate[0] = __uint_as_float(numbers.z);
    p.rate[1] = __uint_as_float(numbers.w);
    p.columns[0] = words.z;
    p.columns[1] = words.w;
    return p;
  }

 private:
  CellRoute* routes_;
  uint4* words_;  // the lane's, 32 apart

  static constexpr int kLaneWords = 2 * 32;  // from route to route
};

// A plane tensor's pixels in a tile, of the block's channels: a lane's pieces of eight channels, of sixteen pixels a turn.
template <typename Element>
struct CellPlane {
  static constexpr int kTurns = kCellSide / 2;
  Element* first;  // the lane's of the tile's first cell
  int row, pixel;  // bytes

  template <typename T>
  __device__ __forceinline__ CellPlane(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                       const GpuPlanes<Element>& planes)
      : row(static_cast<int>(args.width * planes.pixel * sizeof(Element))),
        pixel(static_cast<int>(planes.pixel * sizeof(Element))) {
    Element* const block =
        planes.data + place.image * planes.batch + place.group * kGpuChannels + 8 * half();
    first = offset_bytes(offset_bytes(block, place.top + lane_row(), row),
                         place.left + lane_column(), pixel);
  }
  __device__ __forceinline__ Element* at(const Cell& cell, int turn) const {
    return offset_bytes(offset_bytes(first, kCellSide * cell.row + 2 * turn, row),
                        kCellSide * cell.column, pixel);
  }
  // The lane's pixel of the first turn, and its half of the channels.
  __device__ __forceinline__ static int lane_row() {
    return static_cast<int>(threadIdx.x) % 32 / 16;
  }
  __device__ __forceinline__ static int lane_column() {
    return static_cast<int>(threadIdx.x) % 16 / 2;
  }
  __device__ __forceinline__ static int half() { return static_cast<int>(threadIdx.x) % 2; }
};

// Asks for a cell's pixels. commit_copies() is the caller's.
template <typename T>
__device__ __forceinline__ void bring_cell(char* to, const CellPlane<const T>& from,
                                           const Cell& cell) {
  using Plane = CellPlane<const T>;
  char* const own =
      to + Plane::lane_row() * kCellRow + Plane::lane_column() * kCellPixel + Plane::half() * 16;
#pragma unroll
  for (int turn = 0; turn < Plane::kTurns; ++turn)
    copy_async<16>(own + 2 * turn * kCellRow, from.at(cell, turn));
}

// Writes a cell's sums, times `unit`.
template <typename Out>
__device__ __forceinline__ void write_cell(const CellPlane<Out>& to, const Cell& cell,
                                           const char* sums, float unit) {
  using Plane = CellPlane<Out>;
  const int column = Plane::lane_column();
  const char* const own = sums + Plane::lane_row() * kCellSumRow + column * kCellSumPixel +
                          (4 * Plane::half() ^ CellSums::swap_of(column)) * 8;
#pragma unroll
  for (int turn = 0; turn < Plane::kTurns; ++turn) {
    const auto* from = reinterpret_cast<const float4*>(own + 2 * turn * kCellSumRow);
    const float4 low = from[0], high = from[1];
    auto* const at = reinterpret_cast<uint4*>(to.at(cell, turn));
    if constexpr (sizeof(Out) == 2) {
      *at = make_uint4(pair_from_floats<Out>(unit * low.x, unit * low.y),
                       pair_from_floats<Out>(unit * low.z, unit * low.w),
                       pair_from_floats<Out>(unit * high.x, unit * high.y),
                       pair_from_floats<Out>(unit * high.z, unit * high.w));
    } else {
      const auto bits = [&](float x) { return __float_as_uint(unit * x); };
      at[0] = make_uint4(bits(low.x), bits(low.y), bits(low.z), bits(low.w));
      at[1] = make_uint4(bits(high.x), bits(high.y), bits(high.z), bits(high.w));
    }
  }
}

// The lane's channels of step t of a half, from its first step on.
template <typename T>
__device__ __forceinline__ Two<T> read_cell(const char* from, int step, int t) {
  return *reinterpret_cast<const Two<T>*>(from + t * step);
}

}  // namespace linescan
