// ss2d, backward, for half data and one state on planes of several tiles: the steps of packed_backward.cu, a
// line a lane (gpu_lines.cuh), from the last segment to the first. The states that enter the segments come from the
// forward pass or another run of it, the gradients that come back from behind the lines from tile_states.cu.
//
// Source:    docs/decisions/0032-a-lane-a-line-on-planes-of-tiles.md.
// Numerics:  as packed_backward.cu.
// Reference: reference.cpp beside this file. Chosen by launch_packed_backward in packed_backward.cu.

#include "linescan/ops/ss2d/gpu_lines.cuh"
#include "linescan/ops/ss2d/gpu_packed_gradients.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {
namespace {

template <typename T, int kHalves>
using LineGradients = std::conditional_t<8 * kHalves <= kGpuOnChipNumbers, MultipliedGradients<T>,
                                         StoredGradients<T, kHalves>>;

template <typename T, typename G, int kHalves>
__global__ void __launch_bounds__(32 * kGpuBackwardWarps)
    packed_lines_backward_kernel(BackwardArguments<T> args) {
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  const int first_channel = lane_channel(args, place);
  const int channel[2] = {first_channel, first_channel + 1};
  const bool inside = place.group * kGpuChannels + 2 * g < args.channels;
  const bool exists[2] = {inside, inside};
  const PackedFactors<T, kHalves> factors(args);
  const auto gout = args.template gout_as<G>();

  for (int k = 0; k < args.routes; ++k) {
    const TileRoute route(args, place, args.codes[k]);
    LineReader<T, T, kHalves> reader(args, place, route, k,
                                     args.x.data + place.image * args.x.batch + first_channel,
                                     args.x.pixel);
    const PlaneWalk<const G> gout_walk(gout.data + place.image * gout.batch + first_channel,
                                       gout.pixel, route);
    const SumWalk sum_walk(sums, place, route);
    const PackedWeights<T, kHalves> weights(args, place, k);
    LineGradients<T, kHalves> gradients(args, place, route, k);
    const PieceStates<T> ending(args, args.returning, place, route, k, channel);
    ChannelGradients parameters;
    float skip[2];
    for (int i = 0; i < 2; ++i) {
      parameters.A[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel[i]]);
      skip[i] = k == 0 ? skip_of_routes(args, channel[i]) : 0.0f;
    }
    const float2* starts = StateTable(args).at(k, 0, 0, g);
    const bool last_route = k == args.routes - 1;
    const int parts = route.segments_a_line;

    Two<G> next_gy[kGpuSegmentSteps];
    float2 next_start;
    const auto read = [&](int part) {
      const SegmentCursor& at = reader.own;
      if (reader.whole(part))
        load_steps<true>(next_gy, gout_walk, route, at);
      else
        load_steps<false>(next_gy, gout_walk, route, at);
      next_start = starts[(at.line * parts + part) * (kGpuChannels / 2)];
    };
    const auto start = [&](int group) {
      reader.start(group, parts - 1);
      read(parts - 1);
    };
    // Other warps may still add to the sums of the route before; the first segment's numbers come meanwhile.
    if (warp < reader.groups()) start(warp);
    if (k > 0) __syncthreads();
    for (int group = warp; group < reader.groups(); group += warps) {
      if (group != warp) start(group);
      const float2 end = ending.pair(reader.own.line, reader.exists);
      float c[2] = {end.x, end.y};  // what comes back
      for (int part = parts - 1; part >= 0; --part) {
        const SegmentCursor here = reader.own;
        const int steps = min(kGpuSegmentSteps, route.length - part * kGpuSegmentSteps);
        const int valid = reader.exists ? steps : 0;
        BackwardSegment<T, G> s;
        float delta[2 * kGpuProducts][2];
        weights.multiply(reader.records, delta);
        factors.multiply(reader.records, s.B, s.C);
        gradients.start_chunk(reader.records);
        // Steps of size and gradient zero are none; so are those that nothing comes back to.
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          s.x[t] = reader.values[t];
          s.gy[t] = t < valid ? next_gy[t] : Two<G>{};
        }
        const float2 entering = next_start;
        if (part > 0) {
          reader.read(part - 1);
          read(part - 1);
        }
        s.find_factors(delta, parameters.A, steps);
        s.find_states(0, entering.x);
        s.find_states(1, entering.y);
        const SegmentSums<false> own_sums(sum_walk, route, here, valid);
        if (k == 0) {
#pragma unroll
          for (int t = 0; t < kGpuSegmentSteps; ++t) {
            const float gy0 = s.gy[t][0], gy1 = s.gy[t][1];
            parameters.g_D[0] = fmaf(gy0, s.x[t][0], parameters.g_D[0]);
            parameters.g_D[1] = fmaf(gy1, s.x[t][1], parameters.g_D[1]);
            own_sums.write(t, make_float2(skip[0] * gy0, skip[1] * gy1));
          }
        }
        walk_back(s, c, parameters, own_sums, gradients, route, here, valid);
        if (last_route) write_gx(args, place, route, here, valid, inside, own_sums);
      }
    }
    const ParameterSums::Place sum_place = args.parameter_sums.place(args, place, k, warp, channel);
    parameters.store(sum_place, exists);
    gradients.finish_route(sum_place, exists);
  }
}

}  // namespace

template <typename G, typename T>
void launch_packed_lines(const BackwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                         int64_t images, GpuStream stream) {
  dispatch_halves(halves, [&]<int kHalves>() {
    launch("ss2d packed_lines_backward", packed_lines_backward_kernel<T, G, kHalves>,
           {plan.blocks_an_image() * images, static_cast<int>(plan.block), plan.shared_bytes},
           stream, args);
  });
}

template void launch_packed_lines<Float16>(const BackwardArguments<Float16>&, int,
                                           const Ss2dGpuPlan&, int64_t, GpuStream);
template void launch_packed_lines<float>(const BackwardArguments<Float16>&, int, const Ss2dGpuPlan&,
                                         int64_t, GpuStream);
template void launch_packed_lines<BFloat16>(const BackwardArguments<BFloat16>&, int,
                                            const Ss2dGpuPlan&, int64_t, GpuStream);
template void launch_packed_lines<float>(const BackwardArguments<BFloat16>&, int,
                                         const Ss2dGpuPlan&, int64_t, GpuStream);

}  // namespace linescan
