// ss2d on planes of several tiles: the states with which routes enter the tiles.
//
// A piece is the part of a line that lies in one tile; in cells, a line. First every piece's effect on the
// state that enters it (h -> factor h + offset), one thread a piece and channel; then the effects in the order
// of the route, one after another. The scan proper (forward.cu) starts its lines with the result.
// The gradient comes back likewise, from behind: c[t] = a[t] (C[t] gy[t] + c[t+1]).
//
// Numerics:  as forward.cu.
// Reference: reference.cpp beside this file.

#include <type_traits>

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/ss2d/gpu_launch.cuh"

namespace linescan {
namespace {

constexpr int kTransferThreads = 128;
constexpr int kStateTile = 4;    // states that a thread follows at once
constexpr int kHeldRank = 8;     // ranks up to this keep a channel's weights in registers
constexpr int kStepsAhead = 4;   // steps whose numbers are fetched together
constexpr int kPiecesAhead = 8;  // pieces whose effects are fetched together
constexpr int kCarryWarps = 32;  // parts of a route's pieces, 32 channels each

// transfers [slots, routes, pieces, states, channels]: (factor, offset).
template <bool kBackward, typename T>
__global__ void __launch_bounds__(kTransferThreads)
    piece_transfers_kernel(Ss2dGpuArguments<T> args, GpuPlanes<const void> gout, DType gout_dtype,
                           int64_t slots, float2* transfers) {
  int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int channel = static_cast<int>(index % args.channels);
  index /= args.channels;
  const int64_t piece = index % args.pieces;
  index /= args.pieces;
  const int k = static_cast<int>(index % args.routes);
  const int64_t slot = index / args.routes, image = args.first_image + slot;
  if (slot >= slots) return;

  const bool columns = args.codes[k] & kColumnMajor, back = args.codes[k] & kReverseInLine;
  const bool up = args.codes[k] & kReverseLines;
  const int tiles = columns ? args.tile_rows : args.tile_columns;
  const int lines = columns ? args.width : args.height;
  const int length = columns ? args.height : args.width;
  const int side = columns ? args.tile_height : args.tile_width;
  if (piece >= static_cast<int64_t>(lines) * tiles) return;
  const int order = static_cast<int>(piece / tiles), along = static_cast<int>(piece % tiles);
  const int line = up ? lines - 1 - order : order, tile = back ? tiles - 1 - along : along;
  const int begin = tile * side, end = min(length, begin + side);

  const int64_t pixel_step = columns ? args.width : 1, pixel_line = columns ? 1 : args.width;
  const T* x = args.x.data + image * args.x.batch + channel * args.x.channel;
  const int64_t record_stride = static_cast<int64_t>(args.routes) * args.record;
  const T* records = args.projection +
                     image * static_cast<int64_t>(args.height) * args.width * record_stride +
                     static_cast<int64_t>(k) * args.record;
  const int64_t row = static_cast<int64_t>(k) * args.channels + channel;
  const float bias = args.dt_bias[row];
  const auto weight = [&](int r) {
    return args.float_weight ? args.float_weight[row * args.rank + r]
                             : to_float(args.dt_weight[row * args.rank + r]);
  };
  float weights[kHeldRank];
#pragma unroll
  for (int r = 0; r < kHeldRank; ++r) weights[r] = r < args.rank ? weight(r) : 0.0f;
  for (int n = 0; n < args.states; n += kStateTile) {
    float rate[kStateTile], factor[kStateTile], offset[kStateTile];
#pragma unroll
    for (int i = 0; i < kStateTile; ++i) {
      const float A_log = args.A_log[row * args.states + min(n + i, args.states - 1)];
      rate[i] = -kLog2e * exp2_approx(kLog2e * A_log);
      factor[i] = 1;
      offset[i] = 0;
    }
#pragma unroll kStepsAhead
    for (int t = 0; t < end - begin; ++t) {
      const bool from_end = back != kBackward;
      const int64_t pixel = line * pixel_line + (from_end ? end - 1 - t : begin + t) * pixel_step;
      const T* record = records + pixel * record_stride;
      float delta = bias;
      if (args.rank <= kHeldRank) {
#pragma unroll
        for (int r = 0; r < kHeldRank; ++r)
          if (r < args.rank) delta = fmaf(weights[r], to_float(record[r]), delta);
      } else {
        for (int r = 0; r < args.rank; ++r) delta = fmaf(weight(r), to_float(record[r]), delta);
      }
      const float dt = sizeof(T) == 2 ? softplus_short(delta) : softplus(delta);
      const float input =
          kBackward
              ? read_as_float(gout.data, gout_dtype,
                              image * gout.batch + channel * gout.channel + pixel * gout.pixel)
              : dt * to_float(x[pixel * args.x.pixel]);
      const T* factors = record + args.rank + (kBackward ? args.states : 0);  // C or B
#pragma unroll
      for (int i = 0; i < kStateTile; ++i) {
        if (n + i >= args.states) break;
        const float a = exp2_approx(dt * rate[i]);
        const float term = input * to_float(factors[n + i]);
        factor[i] *= a;
        offset[i] = kBackward ? a * (term + offset[i]) : fmaf(a, offset[i], term);
      }
    }
    const int64_t first = (slot * args.routes + k) * args.pieces + piece;
#pragma unroll
    for (int i = 0; i < kStateTile; ++i)
      if (n + i < args.states)
        transfers[(first * args.states + n + i) * args.channels + channel] =
            make_float2(factor[i], offset[i]);
  }
}

// What enters the pieces, [slots, routes, pieces, states, channels], from their transfers. A block
// takes 32 channels of one slot, route and state; its warps a part of the pieces each.
template <bool kBackward, typename T>
__global__ void __launch_bounds__(32 * kCarryWarps)
    entering_states_kernel(Ss2dGpuArguments<T> args, const float2* __restrict__ transfers,
                           float* __restrict__ entering) {
  __shared__ float2 parts[kCarryWarps][32];
  const int groups = (args.channels + 31) / 32, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t index = blockIdx.x;
  const int channel = static_cast<int>(index % groups) * 32 + lane;
  index /= groups;
  const int n = static_cast<int>(index % args.states);
  index /= args.states;
  const int k = static_cast<int>(index % args.routes);
  const bool columns = args.codes[k] & kColumnMajor, restart = args.codes[k] & kRestart;
  const int tiles = args.segments ? 1 : columns ? args.tile_rows : args.tile_columns;
  const int64_t pieces = static_cast<int64_t>(columns ? args.width : args.height) * tiles;
  const int64_t begin = pieces * warp / kCarryWarps, end = pieces * (warp + 1) / kCarryWarps;
  const int64_t stride = static_cast<int64_t>(args.states) * args.channels;
  const int64_t origin = index * args.pieces * stride + n * static_cast<int64_t>(args.channels) +
                         min(channel, args.channels - 1);

  // In the order of the walk; lines are cut off from each other by a restart.
  const auto number = [&](int64_t i) { return kBackward ? pieces - 1 - i : i; };
  const auto fresh = [&](int64_t piece) {
    return restart && piece % tiles == (kBackward ? tiles - 1 : 0);
  };
  float2 part = make_float2(1, 0);
#pragma unroll kPiecesAhead
  for (int64_t i = begin; i < end; ++i) {
    const int64_t piece = number(i);
    const float2 t = transfers[origin + piece * stride];
    part = fresh(piece) ? make_float2(0, t.y) : make_float2(part.x * t.x, fmaf(t.x, part.y, t.y));
  }
  parts[warp][lane] = part;
  __syncthreads();
  float h = 0;
  for (int w = 0; w < warp; ++w) h = fmaf(parts[w][lane].x, h, parts[w][lane].y);
  if (channel >= args.channels) return;
#pragma unroll kPiecesAhead
  for (int64_t i = begin; i < end; ++i) {
    const int64_t piece = number(i);
    if (fresh(piece)) h = 0;
    entering[origin + piece * stride] = h;
    const float2 t = transfers[origin + piece * stride];
    h = fmaf(t.x, h, t.y);
  }
}

template <bool kBackward, typename T>
const float* piece_states(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                          DType gout_dtype, int64_t images, float* workspace, GpuStream stream) {
  if (args.pieces == 0) return nullptr;
  const int64_t count = images * args.routes * args.pieces * args.states * args.channels;
  auto* transfers = reinterpret_cast<float2*>(workspace);
  float* entering = workspace + 2 * count;
  bool packed = false;
  if constexpr (sizeof(T) == 2) {
    packed = true;
    if (args.segments)
      kBackward ? packed_returning_segments(args, gout, images, transfers, stream)
                : packed_segments(args, images, transfers, stream);
    else
      packed = kBackward
                   ? packed_returning_transfers(args, gout, gout_dtype, images, transfers, stream)
                   : packed_transfers(args, images, transfers, stream);
  }
  if (!packed) {
    const int64_t threads = count / args.states;
    launch("ss2d piece_transfers", piece_transfers_kernel<kBackward, T>,
           {(threads + kTransferThreads - 1) / kTransferThreads, kTransferThreads}, stream, args,
           gout, gout_dtype, images, transfers);
  }
  const int64_t groups = (args.channels + 31) / 32;
  launch("ss2d entering_states", entering_states_kernel<kBackward, T>,
         {images * args.routes * args.states * groups, 32 * kCarryWarps}, stream, args, transfers,
         entering);
  return entering;
}

}  // namespace

template <typename T>
const float* entering_states(const Ss2dGpuArguments<T>& args, int64_t images, float* workspace,
                             GpuStream stream) {
  return piece_states<false>(args, {}, DType::kFloat32, images, workspace, stream);
}
template <typename T>
const float* returning_states(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                              DType gout_dtype, int64_t images, float* workspace,
                              GpuStream stream) {
  return piece_states<true>(args, gout, gout_dtype, images, workspace, stream);
}

template const float* entering_states(const Ss2dGpuArguments<float>&, int64_t, float*, GpuStream);
template const float* returning_states(const Ss2dGpuArguments<float>&, const GpuPlanes<const void>&,
                                       DType, int64_t, float*, GpuStream);
template const float* entering_states(const Ss2dGpuArguments<Float16>&, int64_t, float*, GpuStream);
template const float* returning_states(const Ss2dGpuArguments<Float16>&,
                                       const GpuPlanes<const void>&, DType, int64_t, float*,
                                       GpuStream);
template const float* entering_states(const Ss2dGpuArguments<BFloat16>&, int64_t, float*,
                                      GpuStream);
template const float* returning_states(const Ss2dGpuArguments<BFloat16>&,
                                       const GpuPlanes<const void>&, DType, int64_t, float*,
                                       GpuStream);

}  // namespace linescan
