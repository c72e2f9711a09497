// ss2d, backward, where delta's gradient is stored: its two matrix products.
//
//   gdts[pixel] = gdelta[pixel] dt_weight        gdt_weight = sum over pixels of gdelta[pixel]^T dts[pixel]
//
// for every route, and beside the first the sums of B's and C's gradients over the groups of channels. Ranks
// are far below what libraries' tiles are made for: a block of the first product takes all of it for 64 pixels,
// of the second for 64 channels and a part of the pixels. Either reads gdelta once.
//
// Source:    docs/decisions/0030-gradients-of-delta-of-long-records.md.
// Numerics:  operands of T, float32 sums in a fixed order. No atomics.
// Reference: reference.cpp beside this file.

#include <bit>

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/ss2d/gpu_delta_gradient.cuh"

namespace linescan {
namespace {

constexpr int kThreads = 128;
constexpr int kSide = kGpuProductChannels;  // of tiles: pixels, or channels; 16 a warp
constexpr int kStages = 4;                  // tiles under way
constexpr int kRunSteps = 6;                // of a block of the first product, at least
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

template <typename T, int kColumns>
struct Stage {
  Tile<T, kSide> gdelta;
  Tile<T, kColumns> other;  // dt_weight [channel, number], or dts [pixel, number]
};

// Sums of [64, kColumns] in `steps` steps, warp w with rows 16 w to 16 w + 15: load(stage) starts the copies of
// the next step, whose turn comes later; take() is called before and finish() behind the products of each.
// kTransposed: gdelta's rows are what is summed over.
template <int kColumns, bool kTransposed, typename T, class Load, class Take, class Finish>
__device__ __forceinline__ void multiply_tiles(Sums<kColumns / 8>& sums, Stage<T, kColumns>* stages,
                                               int steps, const Load& load, const Take& take,
                                               const Finish& finish) {
  const int first = threadIdx.x / 32 * 16;
  sums.clear();
#pragma unroll
  for (int ahead = 0; ahead < kStages - 1; ++ahead) {
    if (ahead < steps) load(stages[ahead]);
    commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();  // everyone's copies of this step are here, and the step before is done with
    if (step + kStages - 1 < steps) load(stages[(step + kStages - 1) % kStages]);
    commit_copies();
    take();
    const Stage<T, kColumns>& stage = stages[step % kStages];
#pragma unroll
    for (int k = 0; k < kSide; k += 16) {
      FragmentA<T> a;
      if constexpr (kTransposed)
        load_a_transposed(a, stage.gdelta.row(k) + first, stage.gdelta.kStride);
      else
        load_a(a, stage.gdelta.row(first) + k, stage.gdelta.kStride);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        FragmentB<T> b[2];
        load_b_columns(b, stage.other.row(k) + 16 * n, stage.other.kStride);
        multiply_add(sums, n, a, b);
      }
    }
    finish();
  }
}

// Where a step of the first product is: channels of a tile of pixels, then the next tile.
struct RecordStep {
  int64_t pixel;
  int channel = 0;

  __device__ __forceinline__ void advance(int channels) {
    channel += kSide;
    if (channel >= channels) {
      channel = 0;
      pixel += kSide;
    }
  }
};

// Block: a run of tiles of 64 pixels on one route; routes vary fastest.
template <int kColumns, int kBytes, typename T>
__device__ __forceinline__ void multiply_by_weight(const Ss2dGpuArguments<T>& args,
                                                   const DeltaGradient<T>& gradient, int64_t block,
                                                   int run, T* gprojection) {
  const int k = static_cast<int>(block % args.routes);
  const int64_t pixels = gradient.slots * gradient.pixels;
  const int64_t first = block / args.routes * run * kSide;
  const int channels = static_cast<int>(gradient.channels());
  const int tiles = static_cast<int>(min(int64_t{run}, (pixels - first + kSide - 1) / kSide));
  const T* gdelta = gradient.data + k * pixels * channels;
  const T* weight = args.dt_weight + static_cast<int64_t>(k) * args.channels * args.rank;
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, warp = threadIdx.x / 32;
  const int64_t stride = static_cast<int64_t>(args.routes) * args.record;
  T* records = gprojection + (args.first_image * gradient.pixels) * stride + k * args.record;

  // Beside a step's channels go the sums of B's and C's gradients from their groups, two threads a pixel, loaded
  // one step ahead.
  constexpr int kGroups = kSide / kGpuChannels / 2;  // of a step and thread
  const int half = threadIdx.x % 2, own_pixel = threadIdx.x / 2;
  Two<T> loaded[kGroups], factors[kGroups];
  float to_B = 0, to_C = 0;
  const auto load_factors = [&](const RecordStep& at) {
    const int64_t pixel = at.pixel + own_pixel;
    const uint32_t* from = gradient.factors + k * gradient.groups * pixels + pixel;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int group = at.channel / kGpuChannels + 2 * i + half;
      const bool inside = group < gradient.groups && pixel < pixels;
      loaded[i] = {inside ? __ldg(from + group * pixels) : 0u};
    }
  };

  auto* stages = reinterpret_cast<Stage<T, kColumns>*>(shared_memory());
  const TileCopy<T, kSide, 16> gdelta_copy;
  const TileCopy<T, kColumns, kBytes> weight_copy;
  RecordStep ahead = {first}, factors_at = {first}, here = {first};
  load_factors(factors_at);
  Sums<kColumns / 8> sums;
  const auto load = [&](Stage<T, kColumns>& stage) {
    gdelta_copy.start(stage.gdelta, gdelta + ahead.pixel * channels + ahead.channel, channels,
                      pixels - ahead.pixel, channels - ahead.channel);
    weight_copy.start(stage.other, weight + static_cast<int64_t>(ahead.channel) * args.rank,
                      args.rank, args.channels - ahead.channel, args.rank);
    ahead.advance(channels);
  };
  const auto take = [&] {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) factors[i] = loaded[i];
    factors_at.advance(channels);
    load_factors(factors_at);
  };
  const auto finish = [&] {
#pragma unroll
    for (const Two<T>& both : factors) {
      to_B += both[0];
      to_C += both[1];
    }
    if (here.channel + kSide >= channels) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int64_t pixel = here.pixel + 16 * warp + g + 8 * row;
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          const int number = 8 * n + 2 * q;
          if (number < args.rank && pixel < pixels)
            *reinterpret_cast<uint32_t*>(records + pixel * stride + number) =
                pair_from_floats<T>(sums.tiles[n][2 * row], sums.tiles[n][2 * row + 1]);
        }
      }
      to_B += __shfl_xor_sync(kAllLanes, to_B, 1);
      to_C += __shfl_xor_sync(kAllLanes, to_C, 1);
      if (half == 0 && here.pixel + own_pixel < pixels)
        *reinterpret_cast<uint32_t*>(records + (here.pixel + own_pixel) * stride + args.rank) =
            pair_from_floats<T>(to_B, to_C);
      sums.clear();
      to_B = to_C = 0;
    }
    here.advance(channels);
  };
  multiply_tiles<kColumns, false>(sums, stages, tiles * ((channels + kSide - 1) / kSide), load,
                                  take, finish);
}

// Block: 64 channels on one route and a part of the slice's pixels; channels vary fastest.
template <int kColumns, typename T>
__device__ __forceinline__ void multiply_by_dts(const Ss2dGpuArguments<T>& args,
                                                const DeltaGradient<T>& gradient, int64_t block,
                                                int64_t parts, float* weight_sums) {
  const int64_t channels = gradient.channels();
  const int columns = (args.channels + kSide - 1) / kSide;
  const int channel = static_cast<int>(block % columns) * kSide;
  const int k = static_cast<int>(block / columns % args.routes);
  const int64_t part = block / columns / args.routes;
  const int64_t pixels = gradient.slots * gradient.pixels;
  const int64_t tiles = (pixels + kSide - 1) / kSide;
  const int64_t begin = part * tiles / parts, end = (part + 1) * tiles / parts;
  const int64_t stride = static_cast<int64_t>(args.routes) * args.record;
  int64_t pixel = begin * kSide;
  const T* gdelta = gradient.data + (k * pixels + pixel) * channels + channel;
  const T* records =
      args.projection + (args.first_image * gradient.pixels + pixel) * stride + k * args.record;
  auto* stages = reinterpret_cast<Stage<T, kColumns>*>(shared_memory());
  const TileCopy<T, kSide, 16> gdelta_copy;
  const TileCopy<T, kColumns, 4> record_copy;
  Sums<kColumns / 8> sums;
  multiply_tiles<kColumns, true>(
      sums, stages, static_cast<int>(end - begin),
      [&](Stage<T, kColumns>& stage) {
        gdelta_copy.start(stage.gdelta, gdelta, channels, pixels - pixel,
                          static_cast<int>(channels) - channel);
        record_copy.start(stage.other, records, stride, pixels - pixel, args.rank);
        pixel += kSide;
        gdelta += kSide * channels;
        records += kSide * stride;
      },
      [] {}, [] {});

  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const bool adds = args.first_image > 0;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int c = channel + threadIdx.x / 32 * 16 + g + 8 * row;
    if (c >= args.channels) continue;
    float* to = weight_sums + ((part * args.routes + k) * args.channels + c) * args.rank;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int number = 8 * n + 2 * q;
      if (number >= args.rank) continue;
      auto* pair = reinterpret_cast<float2*>(to + number);
      float2 sum = make_float2(sums.tiles[n][2 * row], sums.tiles[n][2 * row + 1]);
      if (adds) sum = make_float2(pair->x + sum.x, pair->y + sum.y);
      *pair = sum;
    }
  }
}

// The blocks of the first product, then those of the second: neither fills the device for long enough alone.
template <typename T, int kColumns, int kBytes>
__global__ void __launch_bounds__(kThreads)
    delta_products_kernel(Ss2dGpuArguments<T> args, DeltaGradient<T> gradient,
                          int64_t record_blocks, int run, int64_t parts, T* gprojection,
                          float* weight_sums) {
  if (blockIdx.x < record_blocks)
    multiply_by_weight<kColumns, kBytes>(args, gradient, blockIdx.x, run, gprojection);
  else
    multiply_by_dts<kColumns>(args, gradient, blockIdx.x - record_blocks, parts, weight_sums);
}

template <int kColumns, typename T>
void multiply_columns(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient,
                      int64_t parts, T* gprojection, float* weight_sums, GpuStream stream) {
  constexpr int64_t kShared = kStages * sizeof(Stage<T, kColumns>);
  const int64_t tiles = (gradient.slots * gradient.pixels + kSide - 1) / kSide;
  const int64_t columns = (args.channels + kSide - 1) / kSide;
  const int64_t run = (kRunSteps + columns - 1) / columns;
  const int64_t record_blocks = (tiles + run - 1) / run * args.routes;
  const auto aligned = [&](int64_t numbers) {
    return args.rank % numbers == 0 &&
           reinterpret_cast<std::uintptr_t>(args.dt_weight) % (numbers * sizeof(T)) == 0;
  };
  launch("ss2d delta_products",
         aligned(8)   ? delta_products_kernel<T, kColumns, 16>
         : aligned(4) ? delta_products_kernel<T, kColumns, 8>
                      : delta_products_kernel<T, kColumns, 4>,
         {record_blocks + columns * parts * args.routes, kThreads, kShared}, stream, args, gradient,
         record_blocks, static_cast<int>(run), parts, gprojection, weight_sums);
}

}  // namespace

template <typename T>
void multiply_delta_gradient(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient,
                             int64_t parts, T* gprojection, float* weight_sums, GpuStream stream) {
  const auto run = [&](auto multiply) {
    multiply(args, gradient, parts, gprojection, weight_sums, stream);
  };
  // Ranks of records up to kGpuMostHalves eights.
  if (args.rank <= 16) return run(multiply_columns<16, T>);
  if (args.rank <= 32) return run(multiply_columns<32, T>);
  if (args.rank <= 48) return run(multiply_columns<48, T>);
  run(multiply_columns<80, T>);
}

template void multiply_delta_gradient(const Ss2dGpuArguments<Float16>&,
                                      const DeltaGradient<Float16>&, int64_t, Float16*, float*,
                                      GpuStream);
template void multiply_delta_gradient(const Ss2dGpuArguments<BFloat16>&,
                                      const DeltaGradient<BFloat16>&, int64_t, BFloat16*, float*,
                                      GpuStream);

}  // namespace linescan
