// ss2d on planes of several tiles, for half data and one state: every piece's effect on the state that
// enters it, as piece_transfers_kernel of tile_states.cu finds it, by the packed kernels' means.
//
// A block takes 16 channels of one tile; lane 4 g + q of a warp walks along one of four lines, segment
// after segment, so that nothing crosses lanes.
//
// Numerics:  as packed_forward.cu.
// Reference: reference.cpp beside this file. Chosen by piece_states in tile_states.cu.

#include <type_traits>

#include "linescan/ops/ss2d/gpu_launch.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {
namespace {

constexpr int kPieceWarps = 8;

// transfers [slots, routes, pieces, channels]: (factor, offset). kBackward: of the gradient that comes
// back, from gout of type G; else of the state.
template <typename T, typename G, int kHalves, bool kBackward>
__global__ void __launch_bounds__(32 * kPieceWarps, 2)
    packed_transfers_kernel(Ss2dGpuArguments<T> args, GpuPlanes<const G> gout, float2* transfers) {
  const BlockPlace place(args);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
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
    const PlaneWalk<const Input> input_walk(input, kBackward ? gout.pixel : args.x.pixel, route);
    const RecordWalk<T, kHalves, false> record_walk(args, place, route, k);
    const PackedWeights<T, kHalves> weights(args, place, k);
    float rate[2];
    for (int i = 0; i < 2; ++i)
      rate[i] =
          -kLog2e *
          exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel + i]);
    float2* pieces =
        transfers +
        ((place.slot * args.routes + k) * args.pieces + route.first_piece) * args.channels +
        channel;
    const int parts = route.segments_a_line, first_part = kBackward ? parts - 1 : 0;
    const int groups = (route.lines + kGpuSegments - 1) / kGpuSegments;
    for (int group = warp; group < groups; group += kPieceWarps) {
      SegmentCursor own(route, (group * kGpuSegments + q) * parts + first_part);
      SegmentCursor column(route, (group * kGpuSegments + g / 2) * parts + first_part);
      RecordColumns<T, kHalves> records;
      Two<Input> next[kGpuSegmentSteps];
      record_walk.load(records, route, column);
      load_steps<false>(next, input_walk, route, own);
      float length[2] = {}, offset[2] = {};
      for (int left = parts; left > 0; --left) {
        float dt[2 * kGpuProducts][2], B[2 * kGpuProducts], C[2 * kGpuProducts];
        weights.multiply(records, dt);
        factors.multiply(records, B, C);
        const int valid = own.template valid<false>(route);
        Two<Input> values[kGpuSegmentSteps];
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) values[t] = next[t];
        if (left > 1) {
          own.part += kBackward ? -1 : 1;
          column.part += kBackward ? -1 : 1;
          record_walk.load(records, route, column);
          load_steps<false>(next, input_walk, route, own);
        }
        float a[kGpuSegmentSteps][2], term[kGpuSegmentSteps][2];
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float step = t < valid ? softplus_short(dt[t][i]) : 0.0f;
            length[i] += step;
            a[t][i] = exp2_approx(step * rate[i]);
            if constexpr (kBackward)
              term[t][i] = t < valid ? a[t][i] * (C[t] * values[t][i]) : 0.0f;
            else
              term[t][i] = step * values[t][i] * B[t];
          }
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int step = kBackward ? kGpuSegmentSteps - 1 - t : t;
            offset[i] = fmaf(a[step][i], offset[i], term[step][i]);
          }
      }
      if (own.line < route.lines && exists)
        *reinterpret_cast<float4*>(pieces + own.line * route.pieces_a_line * args.channels) =
            make_float4(exp2_approx(length[0] * rate[0]), offset[0],
                        exp2_approx(length[1] * rate[1]), offset[1]);
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

bool packed_returning_transfers(const Ss2dGpuArguments<BFloat16>& args,
                                const GpuPlanes<const void>& gout, DType gout_dtype, int64_t images,
                                float2* transfers, GpuStream stream) {
  const int halves = packed_halves(args);
  if (halves == 0 || !packed_pairs(gout, size_of(gout_dtype), args.width)) return false;
  const auto run = [&]<typename G>() {
    const GpuPlanes<const G> typed = {static_cast<const G*>(gout.data), gout.batch, gout.channel,
                                      gout.pixel};
    launch_transfers<BFloat16, G, true>(args, typed, halves, images, transfers, stream);
    return true;
  };
  if (gout_dtype == DType::kBFloat16) return run.template operator()<BFloat16>();
  if (gout_dtype == DType::kFloat32) return run.template operator()<float>();
  return false;
}

}  // namespace linescan
