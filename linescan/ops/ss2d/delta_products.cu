// ss2d, backward, where delta's gradient is stored: its two matrix products.
//
//   gdts[pixel] = gdelta[pixel] dt_weight        gdt_weight = sum over pixels of gdelta[pixel]^T dts[pixel]
//
// for every route, and beside the first, with one state, the sums of B's and C's gradients over the groups of channels. Ranks
// are far below what libraries' tiles are made for: a block of the first product takes all of it for kSide pixels,
// of the second for kSide channels and a part of the pixels. Either reads gdelta once; where a block can hold the second
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
constexpr int kStages = kGpuProductStages;

template <typename T, int kSide, int kColumns>
struct Stage {
  GradientTile<T, kSide> gdelta;
  Tile<T, kSide, kColumns> other;  // dt_weight [channel, number], or dts [pixel, number]
  typename RecordGradients<T, kSide>::Factors factors;
};

// Adds to sums of [kSide, kColumns] in `steps` steps, warp w with rows 16 w to 16 w + 15: load(stage) starts the copies of
// the next step, whose turn comes later; finish(stage) is called behind the products of each. kTransposed: gdelta's rows are
// what is summed over.
template <int kSide, int kColumns, bool kTransposed, typename T, class Load, class Finish>
__device__ __forceinline__ void multiply_tiles(Sums<kColumns / 8>& sums, int steps,
                                               const Load& load, const Finish& finish) {
  auto* stages = reinterpret_cast<Stage<T, kSide, kColumns>*>(shared_memory());
  const int first = threadIdx.x / 32 * 16;
#pragma unroll 1
  for (int ahead = 0; ahead < kStages - 1; ++ahead) {
    if (ahead < steps) load(stages[ahead]);
    commit_copies();
  }
  int at = 0, filled = kStages - 1;
  for (int step = 0; step < steps; ++step) {
    wait_copies<kStages - 2>();
    __syncthreads();  // everyone's copies of this step are here, and the step before is done with
    if (step + kStages - 1 < steps) load(stages[filled]);
    commit_copies();
    const Stage<T, kSide, kColumns>& stage = stages[at];
#pragma unroll
    for (int k = 0; k < kSide; k += 16) {
      FragmentA<T> a;
      if constexpr (kTransposed)
        stage.gdelta.read_transposed(a, k, first);
      else
        stage.gdelta.read(a, first, k);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        FragmentB<T> b[2];
        stage.other.read(b, k, 16 * n);
        multiply_add(sums, n, a, b);
      }
    }
    finish(stage);
    at = after<kStages>(at);
    filled = after<kStages>(filled);
  }
}

// Block: a run of tiles of kSide pixels on one route; routes vary fastest. wide_rows: those of dt_weight are multiples of 16 bytes.
template <int kSide, int kColumns, typename T>
__device__ __forceinline__ void multiply_by_weight(const Ss2dGpuArguments<T>& args,
                                                   const DeltaGradient<T>& gradient, int64_t block,
                                                   int run, bool wide_rows, T* gprojection) {
  const int k = static_cast<int>(block % args.routes);
  const int64_t pixels = gradient.slots * gradient.pixels;
  const int64_t first = block / args.routes * run * kSide;
  const int channels = static_cast<int>(gradient.channels());
  const int tiles = static_cast<int>(min(int64_t{run}, (pixels - first + kSide - 1) / kSide));
  const T* weight = args.dt_weight + static_cast<int64_t>(k) * args.channels * args.rank;
  RecordGradients<T, kSide> records(args, gradient, k, gprojection);
  GradientReader<T, kSide> reader(gradient, k, first);
  const TileCopy<Tile<T, kSide, kColumns>, 16> wide_copy;
  const TileCopy<Tile<T, kSide, kColumns>, 4> copy;
  StepCursor<kSide> here = {first};
  Sums<kColumns / 8> sums;
  sums.clear();
  multiply_tiles<kSide, kColumns, false, T>(
      sums, tiles * ((channels + kSide - 1) / kSide),
      [&](Stage<T, kSide, kColumns>& stage) {
        const int channel = reader.next.channel;
        const T* const rows = weight + static_cast<int64_t>(channel) * args.rank;
        records.start(stage.factors, reader.next);
        reader.start(stage.gdelta);
        if (wide_rows)
          wide_copy.start(stage.other, wide_copy.own(rows, args.rank), args.rank,
                          args.channels - channel, args.rank);
        else
          copy.start(stage.other, copy.own(rows, args.rank), args.rank, args.channels - channel,
                     args.rank);
      },
      [&](const Stage<T, kSide, kColumns>& stage) {
        records.add(stage.factors);
        const int64_t pixel = here.pixel;
        if (here.advance(channels)) records.store(pixel, sums);
      });
}

// Block: kSide channels on one route and a part of the slice's pixels; channels vary fastest.
template <int kSide, int kColumns, typename T>
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
  const TileCopy<GradientTile<T, kSide>, 16> gdelta_copy;
  int64_t pixel = begin * kSide;
  const T* gdelta =
      gdelta_copy.own(gradient.data + (k * pixels + pixel) * channels + channel, channels);
  DtsReader<T, kSide, kColumns> dts(args, gradient, k, pixel);
  const WeightGradients<T> weight_gradients(args, part, k, weight_sums);
  Sums<kColumns / 8> sums;
  weight_gradients.load(sums, channel);
  multiply_tiles<kSide, kColumns, true, T>(
      sums, static_cast<int>(end - begin),
      [&](Stage<T, kSide, kColumns>& stage) {
        gdelta_copy.start(stage.gdelta, gdelta, channels, pixels - pixel,
                          static_cast<int>(channels) - channel);
        dts.start(stage.other);
        pixel += kSide;
        gdelta += kSide * channels;
      },
      [](const Stage<T, kSide, kColumns>&) {});
  weight_gradients.store(sums, channel);
}

// The blocks of the first product, then those of the second: neither fills the device for long enough alone.
template <typename T, int kSide, int kColumns>
__global__ void __launch_bounds__(kThreads<kSide>)
    delta_products_kernel(Ss2dGpuArguments<T> args, DeltaGradient<T> gradient,
                          int64_t record_blocks, int run, int64_t parts, bool wide_rows,
                          T* gprojection, float* weight_sums) {
  if (blockIdx.x < record_blocks)
    multiply_by_weight<kSide, kColumns>(args, gradient, blockIdx.x, run, wide_rows, gprojection);
  else
    multiply_by_dts<kSide, kColumns>(args, gradient, blockIdx.x - record_blocks, parts,
                                     weight_sums);
}

template <int kSide, int kColumns, typename T>
void launch_products(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient,
                     int64_t parts, T* gprojection, float* weight_sums, GpuStream stream) {
  constexpr int64_t kShared = kStages * sizeof(Stage<T, kSide, kColumns>);
  static_assert(kShared <=
                99 * 1024);  // what a block has in any device of compute capability 8.0 on
  const int64_t tiles = (gradient.slots * gradient.pixels + kSide - 1) / kSide;
  const int64_t columns = (args.channels + kSide - 1) / kSide;
  const int64_t run = (kRunSteps + columns - 1) / columns;
  const int64_t record_blocks = (tiles + run - 1) / run * args.routes;
  const bool wide_rows =
      args.rank % 8 == 0 && reinterpret_cast<std::uintptr_t>(args.dt_weight) % 16 == 0;
  launch("ss2d delta_products", delta_products_kernel<T, kSide, kColumns>,
         {record_blocks + columns * parts * args.routes, kThreads<kSide>, kShared}, stream, args,
         gradient, record_blocks, static_cast<int>(run), parts, wide_rows, gprojection,
         weight_sums);
}

}  // namespace

template <typename T>
void multiply_delta_gradient(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient,
                             const GpuProducts& products, int64_t parts, T* gprojection,
                             float* weight_sums, GpuStream stream) {
  const auto run = [&](auto launch) {
    launch(args, gradient, parts, gprojection, weight_sums, stream);
  };
  if (products.columns == 80) return run(launch_products<64, 80, T>);
  if (products.side == 96)
    products.columns == 32 ? run(launch_products<96, 32, T>) : run(launch_products<96, 48, T>);
  else
    products.columns == 32 ? run(launch_products<64, 32, T>) : run(launch_products<64, 48, T>);
}

template void multiply_delta_gradient(const Ss2dGpuArguments<Float16>&,
                                      const DeltaGradient<Float16>&, const GpuProducts&, int64_t,
                                      Float16*, float*, GpuStream);
template void multiply_delta_gradient(const Ss2dGpuArguments<BFloat16>&,
                                      const DeltaGradient<BFloat16>&, const GpuProducts&, int64_t,
                                      BFloat16*, float*, GpuStream);

}  // namespace linescan
