// ss2d, forward, for half data and one state on planes of several tiles: the steps of packed_forward.cu, a line
// a lane (gpu_lines.cuh). The states that enter the lines are known (tile_states.cu), so chunks hand nothing on.
//
// Source:    docs/decisions/0032-a-lane-a-line-on-planes-of-tiles.md.
// Numerics:  as packed_forward.cu.
// Reference: reference.cpp beside this file. Chosen by launch_packed_forward in packed_forward.cu.

#include "linescan/ops/ss2d/gpu_lines.cuh"
#include "linescan/ops/ss2d/gpu_packed_results.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {
namespace {

template <typename T, int kHalves>
__global__ void __launch_bounds__(32 * kGpuLineWarps)
    packed_lines_forward_kernel(ForwardArguments<T> args) {
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  const int first_channel = lane_channel(args, place);
  const int channel[2] = {first_channel, first_channel + 1};
  const bool exists = place.group * kGpuChannels + 2 * g < args.channels;
  const PackedFactors<T, kHalves> factors(args);

  for (int k = 0; k < args.routes; ++k) {
    const TileRoute route(args, place, args.codes[k]);
    LineReader<T, T, kHalves> reader(args, place, route, k,
                                     args.x.data + place.image * args.x.batch + first_channel,
                                     args.x.pixel);
    const SumWalk sum_walk(sums, place, route);
    const ResultWalk<T> result_walk(args, place, route);
    const PackedWeights<T, kHalves> weights(args, place, k);
    const PieceStates<T> entrance(args, args.entering, place, route, k, channel);
    float rate[2], skip[2];
    for (int i = 0; i < 2; ++i) {
      rate[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel[i]]);
      skip[i] = k == 0 ? kLog2e * skip_of_routes(args, channel[i]) : 0.0f;
    }
    float2* starts = args.starts ? StateTable(args).at(k, 0, 0, g) : nullptr;
    const bool last_route = k == args.routes - 1;
    const int parts = route.segments_a_line;
    // Other warps may still add to the sums of the route before; the first segment's numbers come meanwhile.
    if (warp < reader.groups()) reader.start(warp, 0);
    if (k > 0) __syncthreads();
    for (int group = warp; group < reader.groups(); group += warps) {
      if (group != warp) reader.start(group, 0);
      const float2 state = entrance.pair(reader.own.line);
      float h[2] = {kLog2e * state.x, kLog2e * state.y};
      for (int part = 0; part < parts; ++part) {
        float dt[2 * kGpuProducts][2], B[2 * kGpuProducts], C[2 * kGpuProducts];
        weights.multiply(reader.records, dt);
        factors.multiply(reader.records, B, C);
        Two<T> x[kGpuSegmentSteps];
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) x[t] = reader.values[t];
        const SegmentCursor here = reader.own;
        if (part + 1 < parts) reader.read(part + 1);
        if (starts && reader.exists)
          starts[(here.line * parts + part) * (kGpuChannels / 2)] =
              make_float2(kLn2 * h[0], kLn2 * h[1]);
        // The steps whose results are wanted; nothing follows those behind a line's end.
        const int steps = min(kGpuSegmentSteps, route.length - part * kGpuSegmentSteps);
        const int valid = reader.exists && args.out.data != nullptr ? steps : 0;
        const SegmentSums<false> own_sums(sum_walk, route, here, valid);
        if (k == 0) {
#pragma unroll
          for (int t = 0; t < kGpuSegmentSteps; ++t)
            own_sums.write(t, make_float2(skip[0] * x[t][0], skip[1] * x[t][1]));
        }
        float2 result[kGpuSegmentSteps];
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) result[t] = own_sums.read(t);
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float size = softplus_base2(dt[t][i]);
            h[i] = fmaf(exp2_approx(size * rate[i]), h[i], size * x[t][i] * B[t]);
          }
          result[t] = make_float2(fmaf(C[t], h[0], result[t].x), fmaf(C[t], h[1], result[t].y));
        }
        if (last_route)
          result_walk.write(here, exists ? valid : 0, result);
        else
          own_sums.write(result);
      }
    }
  }
}

}  // namespace

template <typename T>
void launch_packed_lines(const ForwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                         int64_t images, GpuStream stream) {
  dispatch_halves(halves, [&]<int kHalves>() {
    launch("ss2d packed_lines_forward", packed_lines_forward_kernel<T, kHalves>,
           {plan.blocks_an_image() * images, static_cast<int>(plan.block), plan.shared_bytes},
           stream, args);
  });
}

template void launch_packed_lines(const ForwardArguments<Float16>&, int, const Ss2dGpuPlan&,
                                  int64_t, GpuStream);
template void launch_packed_lines(const ForwardArguments<BFloat16>&, int, const Ss2dGpuPlan&,
                                  int64_t, GpuStream);

}  // namespace linescan
