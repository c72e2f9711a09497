// ss2d, backward, where delta's gradient is stored: its two matrix products.
//
//   gdts[pixel] = gdelta[pixel] dt_weight        gdt_weight = sum over pixels of gdelta[pixel]^T dts[pixel]
//
// for every route, and beside the first, with one state, the sums of B's and C's gradients over the groups of channels. Ranks
// are far below what libraries' tiles are made for: a block of the first product takes all of it for 64 pixels,
// of the second for 64 channels and a part of the pixels. Either reads gdelta once; where a block can hold the second
// product of all channels, delta_products_at_once.cu reads it once for both.
//
// Source:    docs/decisions/0030-gradients-of-delta-of-long-records.md.
// Numerics:  operands of T, float32 sums in a fixed order. No atomics.
// Reference: reference.cpp beside this file.

#include "linescan/ops/ss2d/gpu_delta_products.cuh"

namespace linescan {
namespace {

using namespace delta_products;

constexpr int kRunSteps = 6;  // of a block of the first product, at least

template <typename T, int kColumns>
struct Stage {
  Tile<T, kSide> gdelta;
  Tile<T, kColumns> other;  // dt_weight [channel, number], or dts [pixel, number]
};

// Adds to sums of [64, kColumns] in `steps` steps, warp w with rows 16 w to 16 w + 15: load(stage) starts the copies of
// the next step, whose turn comes later; take() is called before and finish() behind the products of each.
// kTransposed: gdelta's rows are what is summed over.
template <int kColumns, bool kTransposed, typename T, class Load, class Take, class Finish>
__device__ __forceinline__ void multiply_tiles(Sums<kColumns / 8>& sums, Stage<T, kColumns>* stages,
                                               int steps, const Load& load, const Take& take,
                                               const Finish& finish) {
  const int first = threadIdx.x / 32 * 16;
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
  // Beside a step's channels go the sums of B's and C's gradients from their groups, loaded one step ahead.
  RecordGradients<T> records(args, gradient, k, gprojection);
  auto* stages = reinterpret_cast<Stage<T, kColumns>*>(shared_memory());
  const TileCopy<T, kSide, 16> gdelta_copy;
  const TileCopy<T, kColumns, kBytes> weight_copy;
  RecordStep ahead = {first}, factors_at = {first}, here = {first};
  typename RecordGradients<T>::Factors factors, next = records.load(first, 0);
  Sums<kColumns / 8> sums;
  sums.clear();
  const auto load = [&](Stage<T, kColumns>& stage) {
    gdelta_copy.start(stage.gdelta, gdelta + ahead.pixel * channels + ahead.channel, channels,
                      pixels - ahead.pixel, channels - ahead.channel);
    weight_copy.start(stage.other, weight + static_cast<int64_t>(ahead.channel) * args.rank,
                      args.rank, args.channels - ahead.channel, args.rank);
    ahead.advance(channels);
  };
  const auto take = [&] {
    factors = next;
    factors_at.advance(channels);
    next = records.load(factors_at.pixel, factors_at.channel);
  };
  const auto finish = [&] {
    records.add(factors);
    if (here.channel + kSide >= channels) records.store(here.pixel, sums);
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
  const WeightGradients<T> weight_gradients(args, part, k, weight_sums);
  Sums<kColumns / 8> sums;
  weight_gradients.load(sums, channel);
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

  weight_gradients.store(sums, channel);
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
