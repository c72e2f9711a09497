// ss2d, backward, for half data and one state on planes of several tiles: the steps of packed_backward.cu, a
// line a lane (gpu_lines.cuh), from the last segment to the first. The states that enter the segments come from the
// forward pass or another run of it, the gradients that come back from behind the lines from tile_states.cu.
//
// Source:    docs/decisions/0032-a-lane-a-line-on-planes-of-tiles.md, 0047, 0060.
// Numerics:  as packed_backward.cu.
// Reference: reference.cpp beside this file. Chosen by launch_packed_backward in packed_backward.cu.

#include "linescan/ops/ss2d/gpu_line_routes.cuh"
#include "linescan/ops/ss2d/gpu_packed_gradients.cuh"

namespace linescan {
namespace {

template <typename T, int kHalves>
using LineGradients = std::conditional_t<8 * kHalves <= kGpuOnChipNumbers, MultipliedGradients<T>,
                                         StoredGradients<T, kHalves, kGpuLineSteps>>;

template <typename T, typename G, int kHalves>
__global__ void __launch_bounds__(32 * kGpuBackwardWarps)
    packed_lines_backward_kernel(BackwardArguments<T> args) {
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  const int own = own_channel(args, place), first_channel = place.group * kGpuChannels + own;
  const int channel[2] = {first_channel, first_channel + 1};
  const bool inside = place.group * kGpuChannels + 2 * g < args.channels;
  const bool exists[2] = {inside, inside};
  const PackedFactors<T, kHalves> factors(args);
  LineRecords<T, kHalves> records(args);
  LineRoutes<T, const G, kHalves> routes(behind_sums(sums, place, false));

  for (int k = 0; k < args.routes; ++k) {
    if (routes.prepares(k))
      routes.prepare(args, place, k, [&](int route) {
        const auto gout = args.template gout_as<G>();
        return LineRoute<T, const G>(args, place, route, first_of_block(place, gout), gout.pixel,
                                     args.returning);
      });
    const auto route = routes.route(k);
    LineWalk<const T> x_walk;
    LineWalk<const G> gout_walk;
    const SumWalk sum_walk(sums, place, route);
    const auto weights = routes.weights(k);
    LineGradients<T, kHalves> gradients(args, place, route, k);
    ChannelGradients parameters;
    float skip[2];
    for (int i = 0; i < 2; ++i) {
      parameters.A[i] = routes.rate(k, i);
      skip[i] = k == 0 ? skip_of_routes(args, channel[i]) : 0.0f;
    }
    const float2* const starts = route.starts + g;
    const bool last_route = k == args.routes - 1;
    const int parts = (route.length + kGpuLineSteps - 1) / kGpuLineSteps;
    const int last_position = (parts - 1) * kGpuLineSteps;
    const int groups = (route.lines + kGpuSegments - 1) / kGpuSegments;

    Two<T> next_x[kGpuLineSteps];
    Two<G> next_gy[kGpuLineSteps];
    float2 next_start, end;  // end: what comes back from behind the lines
    const float2* starts_at = starts;
    const auto load = [&](int left) {
      whole_or_part(left, [&]<bool kWhole>() {
        records.template load<kWhole>(left);
        load_steps<kWhole>(next_x, x_walk, left);
        load_steps<kWhole>(next_gy, gout_walk, left);
      });
      next_start = *starts_at;
    };
    OwnLine line;
    const auto start = [&](int group) {
      line = {route, group};
      records.start(args, route, route.records, group, last_position);
      x_walk = {route.x + own, args.x.pixel, route, line.number, last_position};
      gout_walk = {route.other + own, args.gout.pixel, route, line.number, last_position};
      starts_at = starts + (line.number * parts + parts - 1) * (kGpuChannels / 2);
      load(route.length - last_position);
      end = route.entering(line.number, own, line.exists);
    };
    // Other warps may still add to the sums of the route before; the first segment's numbers come meanwhile.
    if (warp < groups) start(warp);
    if (k > 0) __syncthreads();
    for (int group = warp; group < groups; group += warps) {
      if (group != warp) start(group);
      float c[2] = {end.x, end.y};  // what comes back
      LineSums own_sums(sum_walk, line.number, last_position);
      int pixels = line.number * route.pixel_line + last_position * route.pixel_step;
      const bool whole_group = (group + 1) * kGpuSegments <= route.lines;
      for (int position = last_position; position >= 0; position -= kGpuLineSteps) {
        const int steps = min(kGpuLineSteps, route.length - position);
        BackwardSegment<T, G, kGpuLineSteps> s;
        float delta[kGpuLineSteps][2];
        weights.multiply(records.columns, delta);
        factors.multiply(records.columns, s.B, s.C);
        gradients.start_chunk(records.columns);
#pragma unroll
        for (int t = 0; t < kGpuLineSteps; ++t) s.x[t] = next_x[t], s.gy[t] = next_gy[t];
        const float2 entering = next_start;
        if (position > 0) {
          records.move(-kGpuLineSteps);
          x_walk.move(-kGpuLineSteps);
          gout_walk.move(-kGpuLineSteps);
          starts_at -= kGpuChannels / 2;
          load(kGpuLineSteps);
        }
        const auto walk = [&]<bool kWhole>() {
          const int valid = kWhole ? kGpuLineSteps : line.exists ? steps : 0;
          // Steps of size and gradient zero are none; so are those that nothing comes back to.
#pragma unroll
          for (int t = 0; t < kGpuLineSteps; ++t)
            if (!kWhole && t >= valid) s.gy[t] = {};
          s.find_factors(delta, parameters.A, kWhole ? kGpuLineSteps : steps);
          s.find_states(0, entering.x);
          s.find_states(1, entering.y);
          const auto segment = own_sums.template segment<kWhole>(valid);
          if (k == 0) {
#pragma unroll
            for (int t = 0; t < kGpuLineSteps; ++t) {
              const float gy0 = s.gy[t][0], gy1 = s.gy[t][1];
              parameters.g_D[0] = fmaf(gy0, s.x[t][0], parameters.g_D[0]);
              parameters.g_D[1] = fmaf(gy1, s.x[t][1], parameters.g_D[1]);
              segment.write(t, make_float2(skip[0] * gy0, skip[1] * gy1));
            }
          }
          gradients.start_walk(route, pixels);
          walk_back(s, c, parameters, segment, gradients, valid);
          if (last_route)
            write_gx<kGpuLineSteps>(args, place, route, pixels, valid, inside, segment);
        };
        const bool whole = whole_group && steps == kGpuLineSteps;
        whole ? walk.template operator()<true>() : walk.template operator()<false>();
        own_sums.move(-kGpuLineSteps);
        pixels -= kGpuLineSteps * route.pixel_step;
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
           {plan.blocks_an_image() * images, static_cast<int>(plan.general_block),
            plan.general_shared_bytes},
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
