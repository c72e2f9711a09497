// ss2d, backward, where delta's gradient is stored: both of its products (delta_products.cu) from one reading, for
// channels and ranks of which a block's registers hold the gradient of dt_weight.
//
// A block takes a part of the pixels of one route and all channels, kSide of either a step: such a tile of gdelta is
// multiplied by dt_weight, which stays in shared memory, and its transpose by the tile's dts.
//
// Source:    docs/decisions/0048-larger-tiles-of-deltas-gradient.md.
// Numerics:  operands of T, float32 sums in a fixed order. No atomics.
// Reference: reference.cpp beside this file. Chosen by launch_backward in backward.cu.

#include "linescan/ops/ss2d/gpu_delta_products.cuh"

namespace linescan {
namespace {

using namespace delta_products;

constexpr int kStages = kGpuProductStages;

template <typename T, int kSide>
struct Stage {
  GradientTile<T, kSide> gdelta;
  typename RecordGradients<T, kSide>::Factors factors;
};

template <int kSide, int kColumns>
constexpr int kDtsTiles = GpuProducts{kSide, kColumns}.dts_tiles();

// kSlabs: the most times kSide channels.
template <typename T, int kSide, int kColumns, int kSlabs>
__global__ void __launch_bounds__(kThreads<kSide>, (GpuProducts{kSide, kColumns}.blocks()))
    delta_products_at_once_kernel(Ss2dGpuArguments<T> args, DeltaGradient<T> gradient,
                                  int64_t parts, T* gprojection, float* weight_sums) {
  constexpr int kDts = kDtsTiles<kSide, kColumns>;
  const int k = static_cast<int>(blockIdx.x % args.routes);
  const int64_t part = blockIdx.x / args.routes;
  const int64_t tiles = (gradient.slots * gradient.pixels + kSide - 1) / kSide;
  const int64_t begin = part * tiles / parts * kSide, end = (part + 1) * tiles / parts * kSide;
  const int slabs = (static_cast<int>(gradient.channels()) + kSide - 1) / kSide;
  const int first = threadIdx.x / 32 * 16;  // of the warp's rows: pixels, and channels
  auto* stages = reinterpret_cast<Stage<T, kSide>*>(shared_memory());
  auto* dts = reinterpret_cast<Tile<T, kSide, kColumns>*>(stages + kStages);
  auto* weights = dts + kDts;

  GradientReader<T, kSide> reader(gradient, k, begin);
  DtsReader<T, kSide, kColumns> dts_reader(args, gradient, k, begin);
  RecordGradients<T, kSide> records(args, gradient, k, gprojection);
  int filled = 0, filled_dts = 0;
  bool at_tile = true;
  // Starts the copies of the next step, if there is one.
  const auto start = [&] {
    if (reader.next.pixel < end) {
      records.start(stages[filled].factors, reader.next);
      if (at_tile) {
        dts_reader.start(dts[filled_dts]);
        filled_dts = after<kDts>(filled_dts);
      }
      at_tile = reader.start(stages[filled].gdelta);
      filled = after<kStages>(filled);
    }
    commit_copies();
  };

  const TileCopy<Tile<T, kSide, kColumns>, 4> weight_copy;
  const T* weight = weight_copy.own(
      args.dt_weight + static_cast<int64_t>(k) * args.channels * args.rank, args.rank);
  for (int s = 0; s < slabs; ++s, weight += kSide * args.rank)
    weight_copy.start(weights[s], weight, args.rank, args.channels - s * kSide, args.rank);
#pragma unroll 1
  for (int ahead = 0; ahead < kStages - 1; ++ahead) start();

  const WeightGradients<T> weight_gradients(args, part, k, weight_sums);
  Sums<kColumns / 8> record_sums, channel_sums[kSlabs];
  record_sums.clear();
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) weight_gradients.load(channel_sums[s], s * kSide);
  int at = 0, at_dts = 0;
  StepCursor<kSide> here = {begin};
  while (here.pixel < end) {
    wait_copies<kStages - 2>();
    __syncthreads();  // everyone's copies of this step are here, and the step before is done with
    start();
    const Stage<T, kSide>& stage = stages[at];
    const Tile<T, kSide, kColumns>& of_pixels = dts[at_dts];
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {  // sums are registers, and have no index
      if (here.channel != s * kSide) continue;
#pragma unroll
      for (int i = 0; i < kSide; i += 16) {
        FragmentA<T> rows, columns;
        stage.gdelta.read(rows, first, i);
        stage.gdelta.read_transposed(columns, i, first);
#pragma unroll
        for (int n = 0; n < kColumns / 16; ++n) {
          FragmentB<T> b[2];
          weights[s].read(b, i, 16 * n);
          multiply_add(record_sums, n, rows, b);
          of_pixels.read(b, i, 16 * n);
          multiply_add(channel_sums[s], n, columns, b);
        }
      }
    }
    records.add(stage.factors);
    at = after<kStages>(at);
    const int64_t pixel = here.pixel;
    if (here.advance(reader.channels)) {
      at_dts = after<kDts>(at_dts);
      records.store(pixel, record_sums);
    }
  }
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) weight_gradients.store(channel_sums[s], s * kSide);
}

template <typename T, int kSide, int kColumns>
void launch_products(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient,
                     int64_t parts, T* gprojection, float* weight_sums, GpuStream stream) {
  constexpr GpuProducts kProducts = {kSide, kColumns};
  constexpr int kSlabs = static_cast<int>(kProducts.most_channels() / kSide);
  static_assert(kStages * sizeof(Stage<T, kSide>) +
                    (kProducts.dts_tiles() + kSlabs) * sizeof(Tile<T, kSide, kColumns>) ==
                kProducts.shared_bytes(kProducts.most_channels()));
  launch("ss2d delta_products_at_once", delta_products_at_once_kernel<T, kSide, kColumns, kSlabs>,
         {parts * args.routes, kThreads<kSide>, kProducts.shared_bytes(args.channels)}, stream,
         args, gradient, parts, gprojection, weight_sums);
}

}  // namespace

template <typename T>
void multiply_delta_gradient_at_once(const Ss2dGpuArguments<T>& args,
                                     const DeltaGradient<T>& gradient, const GpuProducts& products,
                                     int64_t parts, T* gprojection, float* weight_sums,
                                     GpuStream stream) {
  const auto run = [&](auto launch) {
    launch(args, gradient, parts, gprojection, weight_sums, stream);
  };
  if (products.side == 96)
    products.columns == 16 ? run(launch_products<T, 96, 16>) : run(launch_products<T, 96, 32>);
  else
    products.columns == 16 ? run(launch_products<T, 64, 16>) : run(launch_products<T, 64, 32>);
}

template void multiply_delta_gradient_at_once(const Ss2dGpuArguments<Float16>&,
                                              const DeltaGradient<Float16>&, const GpuProducts&,
                                              int64_t, Float16*, float*, GpuStream);
template void multiply_delta_gradient_at_once(const Ss2dGpuArguments<BFloat16>&,
                                              const DeltaGradient<BFloat16>&, const GpuProducts&,
                                              int64_t, BFloat16*, float*, GpuStream);

}  // namespace linescan
