// What the kernels have in common that multiply delta's gradient, see gpu_delta_gradient.cuh: tiles and their
// copies, 64 pixels by 64 channels a step for four warps, and the stores of both products.
#pragma once

#include <bit>

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/ss2d/gpu_delta_gradient.cuh"

namespace linescan::delta_products {

inline constexpr int kThreads = 128;
inline constexpr int kSide = kGpuProductChannels;  // of tiles: pixels, or channels; 16 a warp
inline constexpr int kStages = 4;                  // tiles under way
static_assert(kSide == 16 * kThreads / 32);

// A tile [64, 64] of gdelta, or [64, rank] of what it is multiplied by; rows at odd multiples of 16 bytes.
template <typename T, int kColumns>
struct Tile {
  static constexpr int kStride = kColumns + 8;
  T numbers[kSide * kStride];

  __device__ __forceinline__ const T* row(int i) const { return numbers + i * kStride; }
};

// A thread's part of copying such tiles: one place of some rows, kBytes of which widths, distances and
// addresses are multiples.
template <typename T, int kColumns, int kBytes>
struct TileCopy {
  static constexpr int kNumbers = kBytes / sizeof(T);
  static constexpr int kLanes =
      static_cast<int>(std::bit_ceil(static_cast<unsigned>(kColumns / kNumbers)));  // of a row
  static constexpr int kRowStep = kThreads / kLanes;
  int row, column;

  __device__ __forceinline__ TileCopy()
      : row(static_cast<int>(threadIdx.x) / kLanes),
        column(static_cast<int>(threadIdx.x) % kLanes * kNumbers) {}

  // The first `rows` rows of a matrix with rows of `width` numbers, `stride` apart; the rest is zero.
  __device__ __forceinline__ void start(Tile<T, kColumns>& tile, const T* matrix, int64_t stride,
                                        int64_t rows, int width) const {
    if (column >= kColumns) return;
    const T* from = matrix + row * stride + column;
    T* to = tile.numbers + row * tile.kStride + column;
    const int here = column < width ? static_cast<int>(min(rows, int64_t{kSide})) : 0;
#pragma unroll
    for (int r = 0; r < kSide; r += kRowStep) {
      copy_async<kBytes>(to + r * tile.kStride, from, row + r < here ? kBytes : 0);
      from += kRowStep * stride;
    }
  }
};

// Of 64 pixels on one route, from pixel 0 of the launch's images on: the gradient of dts from sums over the channels,
// warp w with pixels 16 w to 16 w + 15; and of B and C, with one state, sums over the groups of channels by two threads a
// pixel.
template <typename T>
struct RecordGradients {
  const Ss2dGpuArguments<T>& args;
  T* records;  // of pixel 0
  int64_t pixels, stride;
  const uint32_t* factors;  // gradients of B and C, of group 0
  int groups, half, own;    // none with several states; half of the groups; pixel of a tile
  float to_B = 0, to_C = 0;

  __device__ __forceinline__ RecordGradients(const Ss2dGpuArguments<T>& args,
                                             const DeltaGradient<T>& gradient, int k,
                                             T* gprojection)
      : args(args),
        pixels(gradient.slots * gradient.pixels),
        stride(static_cast<int64_t>(args.routes) * args.record),
        factors(gradient.factors + k * gradient.groups * pixels),
        groups(gradient.states == 1 ? gradient.groups : 0),
        half(threadIdx.x % 2),
        own(threadIdx.x / 2) {
    records = gprojection + args.first_image * gradient.pixels * stride + k * args.record;
  }
  static constexpr int kGroups = kSide / kGpuChannels / 2;  // of a tile's channels and thread
  struct Factors {
    Two<T> words[kGroups];
  };
  __device__ __forceinline__ Factors load(int64_t first_pixel, int channel) const {
    const int64_t pixel = first_pixel + own;
    Factors loaded;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = channel / kGpuChannels + 2 * i + half;
      const bool inside = group < groups && pixel < pixels;
      loaded.words[i] = {inside ? __ldg(factors + group * pixels + pixel) : 0u};
    }
    return loaded;
  }
  __device__ __forceinline__ void add(const Factors& loaded) {
#pragma unroll
    for (const Two<T>& both : loaded.words) {
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

// Sums over a part of the pixels for the gradient of dt_weight of 64 channels from `channel` on: what earlier slices
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
