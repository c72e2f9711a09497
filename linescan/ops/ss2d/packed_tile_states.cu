// ss2d on planes of several tiles, for half data and one state: every piece's effect on the state that
// enters it, as piece_transfers_kernel of tile_states.cu finds it, by the packed kernels' means.
//
// A block takes 16 channels of one tile, a lane a line (gpu_lines.cuh).
//
// Numerics:  as packed_forward.cu.
// Reference: reference.cpp beside this file. Chosen by piece_states in tile_states.cu.

#include <type_traits>

#include "linescan/ops/ss2d/gpu_launch.cuh"
#include "linescan/ops/ss2d/gpu_lines.cuh"

namespace linescan {
namespace {

constexpr int kPieceWarps = 8;

// transfers [slots, routes, pieces, channels]: (factor, offset). kBackward: of the gradient that comes
// back, from gout of type G; else of the state.
template <typename T, typename G, int kHalves, bool kBackward>
__global__ void __launch_bounds__(32 * kPieceWarps, 2)
    packed_transfers_kernel(Ss2dGpuArguments<T> args, GpuPlanes<const G> gout, float2* transfers) {
  const BlockPlace place(args);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int channel = lane_channel(args, place);
  const bool exists = place.group * kGpuChannels + 2 * g < args.channels;
  const PackedFactors<T, kHalves> factors(args);
  using Input = std::conditional_t<kBackward, G, T>;
  const auto* input = [&]() -> const Input* {
    if constexpr (kBackward)
      return gout.data + place.image * gout.batch + channel;
    else
      return args.x.data + place.image * args.x.batch + channel;
  }();

  for (int k = 0; k < args.routes; ++k) {
    const TileRoute route(args, place, args.codes[k]);
    LineReader<T, Input, kHalves> reader(args, place, route, k, input,
                                         kBackward ? gout.pixel : args.x.pixel);
    const PackedWeights<T, kHalves> weights(args, place, k);
    float rate[2];
    for (int i = 0; i < 2; ++i)
      rate[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel + i]);
    float2* pieces =
        transfers +
        ((place.slot * args.routes + k) * args.pieces + route.first_piece) * args.channels +
        channel;
    const int parts = route.segments_a_line;
    float length[2], offset[2];

    const auto walk_segment = [&]<bool kWhole>(int part) {
      float dt[2 * kGpuProducts][2], B[2 * kGpuProducts], C[2 * kGpuProducts];
      weights.multiply(reader.records, dt);
      factors.multiply(reader.records, B, C);
      Two<Input> values[kGpuSegmentSteps];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) values[t] = reader.values[t];
      const int next = kBackward ? part - 1 : part + 1;
      if (kBackward ? part > 0 : kWhole && next < parts) reader.read(next);
      const int steps = kWhole ? kGpuSegmentSteps : route.length - part * kGpuSegmentSteps;
#pragma unroll
      for (int i = 0; i < kGpuSegmentSteps; ++i) {
        const int t = kBackward ? kGpuSegmentSteps - 1 - i : i;
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float size = softplus_base2(dt[t][c]);
          if (!kWhole && t >= steps) size = 0;
          length[c] += size;
          const float a = exp2_approx(size * rate[c]);
          if constexpr (kBackward) {
            const float back = kWhole || t < steps ? C[t] * values[t][c] : 0.0f;
            offset[c] = a * (offset[c] + back);
          } else {
            offset[c] = fmaf(a, offset[c], size * values[t][c] * B[t]);
          }
        }
      }
    };
    for (int group = warp; group < reader.groups(); group += kPieceWarps) {
      for (int c = 0; c < 2; ++c) length[c] = offset[c] = 0;
      reader.start(group, kBackward ? parts - 1 : 0);
      for (int i = 0; i < parts; ++i) {
        const int part = kBackward ? parts - 1 - i : i;
        reader.whole(part) ? walk_segment.template operator()<true>(part)
                           : walk_segment.template operator()<false>(part);
      }
      // Steps are in units of ln 2, and so is what they add to a state.
      constexpr float kUnit = kBackward ? 1.0f : kLn2;
      if (reader.exists && exists)
        *reinterpret_cast<float4*>(pieces + reader.own.line * route.pieces_a_line * args.channels) =
            make_float4(exp2_approx(length[0] * rate[0]), kUnit * offset[0],
                        exp2_approx(length[1] * rate[1]), kUnit * offset[1]);
    }
  }
}

template <typename T, typename G, bool kBackward>
void launch_transfers(const Ss2dGpuArguments<T>& args, const GpuPlanes<const G>& gout, int halves,
                      int64_t images, float2* transfers, GpuStream stream) {
  const int64_t blocks = images * args.channel_groups * args.tile_rows * args.tile_columns;
  dispatch_halves(halves, [&]<int kHalves>() {
    launch("ss2d packed_transfers", packed_transfers_kernel<T, G, kHalves, kBackward>,
           {blocks, 32 * kPieceWarps}, stream, args, gout, transfers);
  });
}

}  // namespace

template <typename T>
bool packed_transfers(const Ss2dGpuArguments<T>& args, int64_t images, float2* transfers,
                      GpuStream stream) {
  const int halves = packed_halves(args);
  if (halves == 0) return false;
  launch_transfers<T, T, false>(args, {}, halves, images, transfers, stream);
  return true;
}
template bool packed_transfers(const Ss2dGpuArguments<Float16>&, int64_t, float2*, GpuStream);
template bool packed_transfers(const Ss2dGpuArguments<BFloat16>&, int64_t, float2*, GpuStream);

template <typename T>
bool packed_returning_transfers(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                                DType gout_dtype, int64_t images, float2* transfers,
                                GpuStream stream) {
  const int halves = packed_halves(args);
  if (halves == 0 || !packed_pairs(gout, size_of(gout_dtype), args.width)) return false;
  const auto run = [&]<typename G>() {
    const GpuPlanes<const G> typed = {static_cast<const G*>(gout.data), gout.batch, gout.channel,
                                      gout.pixel};
    launch_transfers<T, G, true>(args, typed, halves, images, transfers, stream);
    return true;
  };
  if (gout_dtype == kDTypeOf<T>) return run.template operator()<T>();
  if (gout_dtype == DType::kFloat32) return run.template operator()<float>();
  return false;
}
template bool packed_returning_transfers(const Ss2dGpuArguments<Float16>&,
                                         const GpuPlanes<const void>&, DType, int64_t, float2*,
                                         GpuStream);
template bool packed_returning_transfers(const Ss2dGpuArguments<BFloat16>&,
                                         const GpuPlanes<const void>&, DType, int64_t, float2*,
                                         GpuStream);

}  // namespace linescan
