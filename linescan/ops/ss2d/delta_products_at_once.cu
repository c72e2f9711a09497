// ss2d, backward, where delta's gradient is stored: both of its products (delta_products.cu) from one reading, for
// channels and ranks of which a block's registers hold the gradient of dt_weight.
//
// A block takes a part of the pixels of one route, 64 at a time, and all channels, 64 at a time: such a tile of
// gdelta is multiplied by dt_weight, which stays in shared memory, and its transpose by the tile's dts, which stay
// in registers.
//
// Source:    docs/decisions/0033-twelve-warps-backward.md.
// Numerics:  operands of T, float32 sums in a fixed order. No atomics.
// Reference: reference.cpp beside this file. Chosen by launch_backward in backward.cu.

#include "linescan/ops/ss2d/gpu_delta_products.cuh"

namespace linescan {
namespace {

using namespace delta_products;

template <typename T, int kColumns>
struct Stage {
  Tile<T, kSide> gdelta;
  Tile<T, kColumns> dts;  // of a tile of pixels, beside its first channels
};

// Sizes and addresses of a block's part, and the order in which it comes.
template <typename T, int kColumns>
struct PartReader {
  const T *gdelta, *dts;  // of pixel 0 of the launch
  int64_t pixels, stride, pixel, end;
  int channels, rank, channel = 0;
  TileCopy<T, kSide, 16> gdelta_copy;
  TileCopy<T, kColumns, 4> dts_copy;

  __device__ __forceinline__ PartReader(const Ss2dGpuArguments<T>& args,
                                        const DeltaGradient<T>& gradient, int k, int64_t begin,
                                        int64_t end)
      : pixels(gradient.slots * gradient.pixels),
        stride(static_cast<int64_t>(args.routes) * args.record),
        pixel(begin),
        end(end),
        channels(static_cast<int>(gradient.channels())),
        rank(args.rank) {
    gdelta = gradient.data + k * pixels * channels;
    dts = args.projection + args.first_image * gradient.pixels * stride + k * args.record;
  }
  // Starts the copies of the next channels of a tile, or of the next tile's first; none behind the end.
  __device__ __forceinline__ void start(Stage<T, kColumns>& stage) {
    if (pixel < end) {
      gdelta_copy.start(stage.gdelta, gdelta + pixel * channels + channel, channels, pixels - pixel,
                        channels - channel);
      if (channel == 0)
        dts_copy.start(stage.dts, dts + pixel * stride, stride, pixels - pixel, rank);
      channel += kSide;
      if (channel >= channels) {
        channel = 0;
        pixel += kSide;
      }
    }
    commit_copies();
  }
};

// kSlabs: the most times 64 channels.
template <typename T, int kColumns, int kSlabs>
__global__ void __launch_bounds__(kThreads, gpu_blocks_at_once(kColumns))
    delta_products_at_once_kernel(Ss2dGpuArguments<T> args, DeltaGradient<T> gradient,
                                  int64_t parts, T* gprojection, float* weight_sums) {
  const int k = static_cast<int>(blockIdx.x % args.routes);
  const int64_t part = blockIdx.x / args.routes;
  const int64_t tiles = (gradient.slots * gradient.pixels + kSide - 1) / kSide;
  const int64_t begin = part * tiles / parts * kSide, end = (part + 1) * tiles / parts * kSide;
  const int slabs = (static_cast<int>(gradient.channels()) + kSide - 1) / kSide;
  const int first = threadIdx.x / 32 * 16;  // of the warp's rows: pixels, and channels
  auto* stages = reinterpret_cast<Stage<T, kColumns>*>(shared_memory());
  auto* weights = reinterpret_cast<Tile<T, kColumns>*>(stages + kStages);
  PartReader<T, kColumns> reader(args, gradient, k, begin, end);
  const TileCopy<T, kColumns, 4> weight_copy;
  const T* weight = args.dt_weight + static_cast<int64_t>(k) * args.channels * args.rank;
  for (int s = 0; s < slabs; ++s)
    weight_copy.start(weights[s], weight + static_cast<int64_t>(s) * kSide * args.rank, args.rank,
                      args.channels - s * kSide, args.rank);
#pragma unroll
  for (int ahead = 0; ahead < kStages - 1; ++ahead) reader.start(stages[ahead]);

  RecordGradients<T> records(args, gradient, k, gprojection);
  typename RecordGradients<T>::Factors next = records.load(begin, 0);
  const WeightGradients<T> weight_gradients(args, part, k, weight_sums);
  Sums<kColumns / 8> record_sums, channel_sums[kSlabs];
  record_sums.clear();
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) weight_gradients.load(channel_sums[s], s * kSide);
  int step = 0;
  for (int64_t pixel = begin; pixel < end; pixel += kSide) {
    FragmentB<T> dts[kSide / 16][kColumns / 16][2];
#pragma unroll
    for (int s = 0; s < kSlabs; ++s) {
      if (s >= slabs) break;
      wait_copies<kStages - 2>();
      __syncthreads();  // everyone's copies of this step are here, and the step before is done with
      const Stage<T, kColumns>& stage = stages[step % kStages];
      reader.start(stages[(step + kStages - 1) % kStages]);
      ++step;
      const auto factors = next;
      const bool last = s == slabs - 1;
      next = records.load(last ? pixel + kSide : pixel, last ? 0 : (s + 1) * kSide);
#pragma unroll
      for (int i = 0; i < kSide; i += 16) {
        FragmentA<T> of_pixels, of_channels;
        load_a(of_pixels, stage.gdelta.row(first) + i, stage.gdelta.kStride);
        load_a_transposed(of_channels, stage.gdelta.row(i) + first, stage.gdelta.kStride);
#pragma unroll
        for (int n = 0; n < kColumns / 16; ++n) {
          FragmentB<T> b[2];
          load_b_columns(b, weights[s].row(i) + 16 * n, weights[s].kStride);
          multiply_add(record_sums, n, of_pixels, b);
          if (s == 0) load_b_columns(dts[i / 16][n], stage.dts.row(i) + 16 * n, stage.dts.kStride);
          multiply_add(channel_sums[s], n, of_channels, dts[i / 16][n]);
        }
      }
      records.add(factors);
    }
    records.store(pixel, record_sums);
  }
#pragma unroll
  for (int s = 0; s < kSlabs; ++s) weight_gradients.store(channel_sums[s], s * kSide);
}

template <typename T, int kColumns, int kSlabs>
void launch_slabs(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient, int64_t parts,
                  T* gprojection, float* weight_sums, GpuStream stream) {
  static_assert(kStages * sizeof(Stage<T, kColumns>) + sizeof(Tile<T, kColumns>) ==
                gpu_bytes_at_once(kColumns, kSide));
  const int64_t shared = gpu_bytes_at_once(args.rank, gradient.channels());
  launch("ss2d delta_products_at_once", delta_products_at_once_kernel<T, kColumns, kSlabs>,
         {parts * args.routes, kThreads, shared}, stream, args, gradient, parts, gprojection,
         weight_sums);
}

}  // namespace

template <typename T>
void multiply_delta_gradient_at_once(const Ss2dGpuArguments<T>& args,
                                     const DeltaGradient<T>& gradient, int64_t parts,
                                     T* gprojection, float* weight_sums, GpuStream stream) {
  const auto run = [&](auto launch) {
    launch(args, gradient, parts, gprojection, weight_sums, stream);
  };
  const bool few = args.channels <= 4 * kSide;
  if (args.rank <= 16)
    few ? run(launch_slabs<T, 16, 4>) : run(launch_slabs<T, 16, kGpuSlabsAtOnce>);
  else
    few ? run(launch_slabs<T, 32, 4>) : run(launch_slabs<T, 32, kGpuSlabsAtOnce>);
}

template void multiply_delta_gradient_at_once(const Ss2dGpuArguments<Float16>&,
                                              const DeltaGradient<Float16>&, int64_t, Float16*,
                                              float*, GpuStream);
template void multiply_delta_gradient_at_once(const Ss2dGpuArguments<BFloat16>&,
                                              const DeltaGradient<BFloat16>&, int64_t, BFloat16*,
                                              float*, GpuStream);

}  // namespace linescan
