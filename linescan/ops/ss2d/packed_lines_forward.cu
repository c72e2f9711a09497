// ss2d, forward, for half data and one state on planes of several tiles: the steps of packed_forward.cu, a line
// a lane (gpu_lines.cuh). The states that enter the lines are known (tile_states.cu), so chunks hand nothing on.
//
// Source:    docs/decisions/0032-a-lane-a-line-on-planes-of-tiles.md, 0047, 0060.
// Numerics:  as packed_forward.cu.
// Reference: reference.cpp beside this file. Chosen by launch_packed_forward in packed_forward.cu.

#include "linescan/ops/ss2d/gpu_line_routes.cuh"
#include "linescan/ops/ss2d/gpu_packed_results.cuh"

namespace linescan {
namespace {

template <typename T, int kHalves>
__global__ void __launch_bounds__(32 * kGpuMaxWarps)
    packed_lines_forward_kernel(ForwardArguments<T> args) {
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  const int own = own_channel(args, place);
  const bool exists = place.group * kGpuChannels + 2 * g < args.channels;
  const PackedFactors<T, kHalves> factors(args);
  LineRecords<T, kHalves> records(args);
  LineWalk<const T> x_walk;
  Two<T> values[kGpuLineSteps];
  LineRoutes<T, char, kHalves> routes(behind_sums(sums, place, false));
  const int result_size = size_of_result(args);

  // kFirst: the route's results are the sums' first addends, with D x.
  const auto walk_route = [&]<bool kFirst>(int k) {
    if (routes.prepares(k))
      routes.prepare(args, place, k, [&](int route) {
        const int64_t first = place.image * args.out.batch + place.group * kGpuChannels;
        return LineRoute<T, char>(args, place, route,
                                  static_cast<char*>(args.out.data) + first * result_size,
                                  args.out.pixel * result_size, args.entering);
      });
    const auto& route = routes.route(k);
    const int lines = route.lines, length = route.length;
    const SumWalk sum_walk(sums, place, route);
    const auto weights = routes.weights(k);
    float rate[2], skip[2];
    for (int i = 0; i < 2; ++i) {
      rate[i] = routes.rate(k, i);
      skip[i] = kFirst ? kLog2e * skip_of_routes(args, place.group * kGpuChannels + own + i) : 0.0f;
    }
    float2* const starts = route.starts ? route.starts + g : nullptr;
    const bool last_route = k == args.routes - 1, wanted = args.out.data != nullptr;
    const bool wide = args.out_dtype == DType::kFloat32;
    const int parts = (length + kGpuLineSteps - 1) / kGpuLineSteps;
    const int groups = (lines + kGpuSegments - 1) / kGpuSegments;
    float2 state;
    OwnLine line;
    const auto load = [&](int left) {
      whole_or_part(left, [&]<bool kWhole>() {
        records.template load<kWhole>(left);
        load_steps<kWhole>(values, x_walk, left);
      });
    };
    const auto start = [&](int group) {
      line = {route, group};
      records.start(args, route, route.records, group, 0);
      x_walk = {route.x + own, args.x.pixel, route, line.number, 0};
      load(length);
      state = route.entering(line.number, own);
    };
    // Other warps may still add to the sums of the route before; the first segment's numbers come meanwhile.
    if (warp < groups) start(warp);
    if (!kFirst) __syncthreads();
    for (int group = warp; group < groups; group += warps) {
      if (group != warp) start(group);
      float h[2] = {kLog2e * state.x, kLog2e * state.y};
      float2* kept = starts + line.number * parts * (kGpuChannels / 2);
      LineSums own_sums(sum_walk, line.number);
      LineWalk<char> results(route.other + own * result_size, args.out.pixel * result_size, route,
                             line.number, 0);
      const bool whole_group = (group + 1) * kGpuSegments <= lines;
      for (int left = length; left > 0; left -= kGpuLineSteps) {
        float delta[kGpuLineSteps][2], B[kGpuLineSteps], C[kGpuLineSteps], terms[kGpuLineSteps][2];
        weights.multiply(records.columns, delta);
        factors.multiply(records.columns, B, C);
        float2 result[kGpuLineSteps];
#pragma unroll
        for (int t = 0; t < kGpuLineSteps; ++t) {
          const float x[2] = {values[t][0], values[t][1]};
          for (int i = 0; i < 2; ++i) terms[t][i] = x[i] * B[t];
          if (kFirst) result[t] = make_float2(skip[0] * x[0], skip[1] * x[1]);
        }
        const int valid = line.exists ? left : 0;
        if (left > kGpuLineSteps) {
          records.move(kGpuLineSteps);
          x_walk.move(kGpuLineSteps);
          load(left - kGpuLineSteps);
        }
        store_if(starts != nullptr && valid > 0, kept, make_float2(kLn2 * h[0], kLn2 * h[1]));
        kept += kGpuChannels / 2;
        const auto walk = [&]<bool kWhole>() {
          const auto segment = own_sums.template segment<kWhole>(valid);
          if (!kFirst) {
#pragma unroll
            for (int t = 0; t < kGpuLineSteps; ++t) result[t] = segment.read(t);
          }
#pragma unroll
          for (int t = 0; t < kGpuLineSteps; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float size = softplus_base2(delta[t][i]);
              h[i] = fmaf(exp2_approx(size * rate[i]), h[i], size * terms[t][i]);
            }
            result[t] = make_float2(fmaf(C[t], h[0], result[t].x), fmaf(C[t], h[1], result[t].y));
          }
          // Nothing is wanted of the steps behind a line's end.
          if (!wanted) return;
          if (!last_route) {
#pragma unroll
            for (int t = 0; t < kGpuLineSteps; ++t) segment.write(t, result[t]);
          } else if (exists) {
            write_results<T>(results.at, results.step, wide, kWhole ? kGpuLineSteps : valid,
                             result);
          }
        };
        const bool whole = whole_group && left >= kGpuLineSteps;
        whole ? walk.template operator()<true>() : walk.template operator()<false>();
        own_sums.move(kGpuLineSteps);
        results.move(kGpuLineSteps);
      }
    }
  };
  for (int k = 0; k < args.routes; ++k)
    k == 0 ? walk_route.template operator()<true>(k) : walk_route.template operator()<false>(k);
}

}  // namespace

template <typename T>
void launch_packed_lines(const ForwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                         int64_t images, GpuStream stream) {
  dispatch_halves(halves, [&]<int kHalves>() {
    launch("ss2d packed_lines_forward", packed_lines_forward_kernel<T, kHalves>,
           {plan.blocks_an_image() * images, static_cast<int>(plan.general_block),
            plan.general_shared_bytes},
           stream, args);
  });
}

template void launch_packed_lines(const ForwardArguments<Float16>&, int, const Ss2dGpuPlan&,
                                  int64_t, GpuStream);
template void launch_packed_lines(const ForwardArguments<BFloat16>&, int, const Ss2dGpuPlan&,
                                  int64_t, GpuStream);

}  // namespace linescan
