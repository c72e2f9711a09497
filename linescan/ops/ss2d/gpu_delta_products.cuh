// What the kernels have in common that multiply delta's gradient, see gpu_delta_gradient.cuh: tiles and their
// copies, kSide pixels by kSide channels a step, 16 of either for each warp, and the stores of both products.
#pragma once

#include <bit>

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/ss2d/gpu_delta_gradient.cuh"

namespace linescan::delta_products {

template <int kSide>
inline constexpr int kThreads = 2 * kSide;

// A tile [kSide, kSide] of gdelta. Rows without gaps, so that lines of memory stay whole; against bank conflicts packs of
// eight numbers change places with their neighbours, differently in neighbouring rows.
template <typename T, int kSide>
struct GradientTile {
  using Number = T;
  static constexpr int kRows = kSide, kColumns = kSide, kStride = kSide;
  T numbers[kSide * kSide];

  __device__ __forceinline__ static int offset(int row, int column) {
    const int turn = kSide % 64 == 0 ? row % 8 : row / 2 % 4;
    return row * kStride + (column / 8 ^ turn) * 8;
  }
  // A[m, k] = tile[row + m, column + k], and tile[row + k, column + m]; all multiples of 16.
  __device__ __forceinline__ void read(FragmentA<T>& a, int row, int column) const {
    const int lane = threadIdx.x % 32;
    load_matrices(a.words, numbers + offset(row + lane % 16, column + lane / 16 * 8));
  }
  __device__ __forceinline__ void read_transposed(FragmentA<T>& a, int row, int column) const {
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(
        a.words, numbers + offset(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
  }
};
// A tile [kSide, kColumns] of what it is multiplied by; rows at odd multiples of 16 bytes.
template <typename T, int kSide, int kWidth>
struct Tile {
  using Number = T;
  static constexpr int kRows = kSide, kColumns = kWidth, kStride = kColumns + kGpuProductPad;
  T numbers[kSide * kStride];

  __device__ __forceinline__ static int offset(int row, int column) {
    return row * kStride + column;
  }
  // B[k, n] = tile[row + k, column + n] for n from 0 to 15
  __device__ __forceinline__ void read(FragmentB<T> (&b)[2], int row, int column) const {
    load_b_columns(b, numbers + offset(row, column), kStride);
  }
};

// A thread's part of copying tiles: one place of some rows, kBytes of which widths, distances and addresses are
// multiples.
template <class AnyTile, int kBytes>
struct TileCopy {
  using T = typename AnyTile::Number;
  static constexpr int kRows = AnyTile::kRows, kColumns = AnyTile::kColumns;
  static constexpr int kNumbers = kBytes / sizeof(T), kPlaces = kColumns / kNumbers;
  static constexpr int kLanes =
      kThreads<kRows> % kPlaces == 0
          ? kPlaces
          : static_cast<int>(std::bit_ceil(unsigned{kPlaces}));  // of a row
  static constexpr int kRowStep = kThreads<kRows> / kLanes;
  static_assert(kRows % kRowStep == 0);
  // A thread's rows are kStride apart if they turn alike: after eight rows.
  static_assert(std::is_same_v<AnyTile, Tile<T, kRows, kColumns>> || kRowStep % 8 == 0);
  int row, column;

  __device__ __forceinline__ TileCopy()
      : row(static_cast<int>(threadIdx.x) / kLanes),
        column(static_cast<int>(threadIdx.x) % kLanes * kNumbers) {}

  // Where the thread reads first in a matrix with rows `stride` apart.
  __device__ __forceinline__ const T* own(const T* matrix, int64_t stride) const {
    return matrix + row * stride + column;
  }
  // The first `rows` rows, of `width` numbers; the rest is zero.
  __device__ __forceinline__ void start(AnyTile& tile, const T* own, int64_t stride, int64_t rows,
                                        int width) const {
    if (column >= kColumns) return;
    T* const to = tile.numbers + tile.offset(row, column);
    const int here = column < width ? static_cast<int>(min(rows, int64_t{kRows})) : 0;
#pragma unroll
    for (int r = 0; r < kRows; r += kRowStep, own += kRowStep * stride)
      copy_async<kBytes>(to + r * tile.kStride, own, row + r < here ? kBytes : 0);
  }
};

// The next of kCount places that are filled in turn.
template <int kCount>
__device__ __forceinline__ int after(int place) {
  return place + 1 < kCount ? place + 1 : 0;
}

// Where a block is in its steps: the channels of a tile of pixels, then the next tile.
template <int kSide>
struct StepCursor {
  int64_t pixel;
  int channel = 0;

  // True: at the next tile.
  __device__ __forceinline__ bool advance(int channels) {
    channel += kSide;
    if (channel < channels) return false;
    channel = 0;
    pixel += kSide;
    return true;
  }
};

// The gradient of delta of one route, in the order of a StepCursor.
template <typename T, int kSide>
struct GradientReader {
  const T* at;  // where the thread reads next
  int64_t pixels;
  int channels;
  StepCursor<kSide> next;
  TileCopy<GradientTile<T, kSide>, 16> copy;

  __device__ __forceinline__ GradientReader(const DeltaGradient<T>& gradient, int k, int64_t pixel)
      : pixels(gradient.slots * gradient.pixels),
        channels(static_cast<int>(gradient.channels())),
        next{pixel} {
    at = copy.own(gradient.data + (k * pixels + pixel) * channels, channels);
  }
  // Starts the copies of a step. True: the one behind it is at the next tile.
  __device__ __forceinline__ bool start(GradientTile<T, kSide>& tile) {
    copy.start(tile, at, channels, pixels - next.pixel, channels - next.channel);
    const int behind = channels - next.channel;
    const bool turns = next.advance(channels);
    at += turns ? behind + (kSide - 1) * static_cast<int64_t>(channels) : kSide;
    return turns;
  }
};

// The dts of a part's tiles of pixels.
template <typename T, int kSide, int kColumns>
struct DtsReader {
  const T* at;
  int64_t stride, pixels, pixel;
  int rank;
  TileCopy<Tile<T, kSide, kColumns>, 4> copy;

  __device__ __forceinline__ DtsReader(const Ss2dGpuArguments<T>& args,
                                       const DeltaGradient<T>& gradient, int k, int64_t pixel)
      : stride(static_cast<int64_t>(args.routes) * args.record),
        pixels(gradient.slots * gradient.pixels),
        pixel(pixel),
        rank(args.rank) {
    at = copy.own(
        args.projection + (args.first_image * gradient.pixels + pixel) * stride + k * args.record,
        stride);
  }
  __device__ __forceinline__ void start(Tile<T, kSide, kColumns>& tile) {
    copy.start(tile, at, stride, pixels - pixel, rank);
    pixel += kSide;
    at += kSide * stride;
  }
};

// Of the pixels of a tile on one route, from pixel 0 of the launch's images on: the gradient of dts from sums over the channels,
// warp w with pixels 16 w to 16 w + 15; and of B and C, with one state, sums over the groups of channels by two threads a
// pixel.
template <typename T, int kSide>
struct RecordGradients {
  static constexpr int kGroups = kSide / kGpuChannels / 2;  // of a step's channels and thread
  // Gradients of B and C from a step's groups of channels: each thread's own.
  struct Factors {
    uint32_t words[kGroups][kThreads<kSide>];
  };

  const Ss2dGpuArguments<T>& args;
  T* records;  // of pixel 0
  int64_t pixels, stride;
  const uint32_t* factors;  // of the thread's first group and pixel in a tile at pixel 0
  int groups, half, own;    // none with several states; half of the groups; pixel of a tile
  float to_B = 0, to_C = 0;

  __device__ __forceinline__ RecordGradients(const Ss2dGpuArguments<T>& args,
                                             const DeltaGradient<T>& gradient, int k,
                                             T* gprojection)
      : args(args),
        pixels(gradient.slots * gradient.pixels),
        stride(static_cast<int64_t>(args.routes) * args.record),
        groups(gradient.states == 1 ? gradient.groups : 0),
        half(threadIdx.x % 2),
        own(threadIdx.x / 2) {
    records = gprojection + args.first_image * gradient.pixels * stride + k * args.record;
    factors = gradient.factors + (k * gradient.groups + half) * pixels + own;
  }
  // Starts the copies of the factors of a step.
  __device__ __forceinline__ void start(Factors& to, const StepCursor<kSide>& step) const {
    if (groups == 0) return;
    const int group = step.channel / kGpuChannels;
    const uint32_t* at = factors + group * pixels + step.pixel;
    const bool exists = step.pixel + own < pixels;
#pragma unroll
    for (int i = 0; i < kGroups; ++i, at += 2 * pixels)
      copy_async<4>(&to.words[i][threadIdx.x], at, exists && group + 2 * i + half < groups ? 4 : 0);
  }
  // Once they are here.
  __device__ __forceinline__ void add(const Factors& from) {
    if (groups == 0) return;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const Two<T> both = {from.words[i][threadIdx.x]};
      to_B += both[0];
      to_C += both[1];
    }
  }
  // Leaves the sums at zero.
  template <int kTiles>
  __device__ __forceinline__ void store(int64_t first_pixel, Sums<kTiles>& sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int64_t pixel = first_pixel + 16 * warp + g + 8 * row;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int number = 8 * n + 2 * q;
        if (number < args.rank && pixel < pixels)
          *reinterpret_cast<uint32_t*>(records + pixel * stride + number) =
              pair_from_floats<T>(sums.tiles[n][2 * row], sums.tiles[n][2 * row + 1]);
      }
    }
    to_B += __shfl_xor_sync(kAllLanes, to_B, 1);
    to_C += __shfl_xor_sync(kAllLanes, to_C, 1);
    if (half == 0 && groups > 0 && first_pixel + own < pixels)
      *reinterpret_cast<uint32_t*>(records + (first_pixel + own) * stride + args.rank) =
          pair_from_floats<T>(to_B, to_C);
    sums.clear();
    to_B = to_C = 0;
  }
};

// Sums over a part of the pixels for the gradient of dt_weight of kSide channels from `channel` on: what earlier slices
// left, which sums begin with, and their store.
template <typename T>
struct WeightGradients {
  const Ss2dGpuArguments<T>& args;
  float* of_part;  // [channels, rank]

  __device__ __forceinline__ WeightGradients(const Ss2dGpuArguments<T>& args, int64_t part, int k,
                                             float* weight_sums)
      : args(args), of_part(weight_sums + (part * args.routes + k) * args.channels * args.rank) {}

  template <int kTiles>
  __device__ __forceinline__ void load(Sums<kTiles>& sums, int channel) const {
    sums.clear();
    if (args.first_image == 0) return;
    each<kTiles>(channel, [&](const float2& pair, int n, int row) {
      const float2 before = pair;
      sums.tiles[n][2 * row] = before.x;
      sums.tiles[n][2 * row + 1] = before.y;
    });
  }
  template <int kTiles>
  __device__ __forceinline__ void store(const Sums<kTiles>& sums, int channel) const {
    each<kTiles>(channel, [&](float2& pair, int n, int row) {
      pair = make_float2(sums.tiles[n][2 * row], sums.tiles[n][2 * row + 1]);
    });
  }

 private:
  // use(two of a thread's sums, tile, row) of those that exist.
  template <int kTiles, class Use>
  __device__ __forceinline__ void each(int channel, const Use& use) const {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int c = channel + threadIdx.x / 32 * 16 + g + 8 * row;
      if (c >= args.channels) continue;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int number = 8 * n + 2 * q;
        if (number < args.rank)
          use(*reinterpret_cast<float2*>(of_part + c * args.rank + number), n, row);
      }
    }
  }
};

}  // namespace linescan::delta_products
