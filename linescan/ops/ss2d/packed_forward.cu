// ss2d, forward, for half data and one state on planes of one tile: as forward.cu, with two channels or numbers an
// access.
//
//   dt2 = log2(1 + exp(dt_weight dts + dt_bias))          a = exp2(dt2 A)
//   h[t] = a h[t-1] + dt2 B x[t]          y = ln 2 * sum over routes of (C h + D x / ln 2)
//
// Steps are counted in units of ln 2, so that the exponential needs no other factor; states and sums
// are then 1 / ln 2 times their size. The first route starts the sums in shared memory, the last one takes them to global memory. A block's
// warps take the chunks of a route in turn, have x of the next one brought meanwhile, and hand the state on from one to the next.
//
// Source:    docs/decisions/0011-ss2d-on-gpus.md.
// Numerics:  state and sums in float; delta's products are exact; dt2 has an absolute error of 1e-7.
// Reference: reference.cpp beside this file. Chosen by launch_forward in forward.cu.

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/ss2d/gpu_packed_results.cuh"
#include "linescan/ops/ss2d/gpu_plane_stage.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"
#include "linescan/ops/ss2d/gpu_sums.cuh"

namespace linescan {
namespace {

template <typename T, int kHalves, bool kWhole, PackedBlock kBlock>
__global__ void __launch_bounds__(32 * kGpuMaxWarps)
    packed_forward_kernel(ForwardArguments<T> args, bool by_sixteen) {
  constexpr bool kOfChunks = kBlock == PackedBlock::kChunks;
  constexpr ChainLink kLink = kBlock == PackedBlock::kWarp ? ChainLink::kNone : ChainLink::kSignals;
  const BlockPlace place(args);
  int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  keep(warps);
  keep(warp);
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  using Stage = PlaneStage<T, kWhole>;
  auto* const stages = reinterpret_cast<unsigned char*>(behind_sums(sums, place, kOfChunks));
  Stage stage(stages + warp * Stage::kBytes, args.channels, place, by_sixteen);
  StateChain<kLink> chain(stages + warps * Stage::kBytes, warp, warps, false);
  const int first_channel = lane_channel(args, place);
  const int channel[2] = {first_channel, first_channel + 1};
  const bool wanted =
      place.group * kGpuChannels + 2 * g < args.channels && args.out.data != nullptr;
  const PackedFactors<T, kHalves> factors(args);

  const int routes = kOfChunks ? 1 : args.routes;
  for (int k = 0; k < routes; ++k) {
    const ChunkRoute route(args, place, args.codes[k]);
    int chunks = route.chunks();
    keep(chunks);
    stage.start_route(args.x, place, route);
    const RecordWalk<T, kHalves, kWhole> record_walk(args, place, route, k);
    const SumWalk sum_walk(sums, place, route, kOfChunks);
    const ResultWalk<T> result_walk(args, place, route);
    const PackedWeights<T, kHalves> weights(args, place, k);
    float rate[2], skip[2];
    for (int i = 0; i < 2; ++i) {
      rate[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel[i]]);
      skip[i] = k == 0 ? kLog2e * skip_of_routes(args, channel[i]) : 0.0f;
    }
    float2* starts = args.starts ? StateTable(args).at(k, 0, 0, g) : nullptr;
    const bool last_route = k == routes - 1;
    // Segments of a chunk are neighbours: the lane's own, and that of the records which it multiplies.
    const auto own_at = [&](int chunk) { return SegmentCursor(route, chunk * kGpuSegments + q); };
    const auto column_at = [&](int chunk) {
      return SegmentCursor(route, chunk * kGpuSegments + g / 2);
    };
    SegmentCursor next = own_at(warp);
    stage.fetch(route, next, warp < chunks);
    commit_copies();

    constexpr bool kAhead = kHalves <= 4;  // else the records of two chunks fill the registers
    RecordColumns<T, kHalves> records;
    if (kAhead) record_walk.load(records, route, column_at(warp));
    bool behind = k > 0;  // whether other warps may still add to the sums of the route before
    for (int chunk = warp; chunk < chunks; chunk += warps) {
      const SegmentCursor here = next;
      const int valid = here.template valid<kWhole>(route);
      Two<T> x[kGpuSegmentSteps];
      wait_copies<0>();
      __syncwarp();
      stage.read(x);
      __syncwarp();
      next = own_at(chunk + warps);
      stage.fetch(route, next, chunk + warps < chunks);
      commit_copies();
      float dt[2 * kGpuProducts][2], B[2 * kGpuProducts], C[2 * kGpuProducts];
      if (!kAhead) record_walk.load(records, route, column_at(chunk));
      weights.multiply(records, dt);
      factors.multiply(records, B, C);
      if (kAhead) record_walk.load(records, route, column_at(chunk + warps));
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) dt[t][i] = softplus_base2(dt[t][i]);
      if (!kWhole) {  // steps of size zero leave the state as it is; nothing follows whole lines
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
          if (t >= valid) dt[t][0] = dt[t][1] = 0;
      }
      const SegmentSums<kWhole> own_sums(sum_walk, route, here, valid);
      if (k == 0) {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
          own_sums.write(t, make_float2(skip[0] * x[t][0], skip[1] * x[t][1]));
      }
      float a[kGpuSegmentSteps][2], b[kGpuSegmentSteps][2];
      // From a lane's own segment; then from its beginning: h[t] = a[t] h + b[t].
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          a[t][i] = exp2_approx(dt[t][i] * rate[i]);
          b[t][i] = dt[t][i] * x[t][i] * B[t];
        }

      // A line that starts anew passes on nothing from before.
      const bool anew = !kWhole && route.restart && here.part == 0 && valid > 0;
      Affine all[2], before[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (anew) a[0][i] = 0;
#pragma unroll
        for (int t = 1; t < kGpuSegmentSteps; ++t) {
          b[t][i] = fmaf(a[t][i], b[t - 1][i], b[t][i]);
          a[t][i] *= a[t - 1][i];
        }
        all[i] = {a[kGpuSegmentSteps - 1][i], b[kGpuSegmentSteps - 1][i]};
        before[i] = scan_lanes<kGpuSegments, false>(all[i], q);
      }
      if (behind) {
        __syncthreads();
        behind = false;
      }
      const float2 entered = chunk > 0 ? chain.take(all[1].factor) : make_float2(0, 0);
      // The chunk's own transfer is that of the last segment and all before.
      if (chunk + 1 < chunks)
        chain.give(q, kGpuSegments - 1, make_float2(all[0](entered.x), all[1](entered.y)));
      if (starts && q == 0)
        starts[chunk * (kGpuChannels / 2)] = make_float2(kLn2 * entered.x, kLn2 * entered.y);
      // C h is added to the sums; the last route's sums go to `out` instead.
      float2 result[kGpuSegmentSteps];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) result[t] = own_sums.read(t);
      const float h[2] = {before[0](entered.x), before[1](entered.y)};
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        result[t].x = fmaf(C[t], fmaf(a[t][0], h[0], b[t][0]), result[t].x);
        result[t].y = fmaf(C[t], fmaf(a[t][1], h[1], b[t][1]), result[t].y);
      }
      if (last_route)
        result_walk.write(here, wanted ? valid : 0, result);
      else
        own_sums.write(result);
    }
    if (behind) __syncthreads();
  }
}

template <typename T, bool kWhole>
void launch_halves(const ForwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                   int64_t images, GpuStream stream) {
  const LaunchShape shape = {plan.blocks_an_image() * images, static_cast<int>(plan.block),
                             plan.shared_bytes};
  const bool sixteen = by_sixteen(args.x, sizeof(T), args.channels);
  dispatch_halves(halves, [&]<int kHalves>() {
    dispatch_block<kHalves>(plan, [&]<PackedBlock kBlock>() {
      launch("ss2d packed_forward", packed_forward_kernel<T, kHalves, kWhole, kBlock>, shape,
             stream, args, sixteen);
    });
  });
}

}  // namespace

template <typename T>
bool launch_packed_forward(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                           GpuStream stream) {
  const int halves = packed_halves(args);
  if (halves == 0 || !packed_result(args)) return false;
  if (args.segments) {
    launch_packed_cells(args, plan, images, stream);
    return true;
  }
  if (args.pieces > 0) {
    launch_packed_lines(args, halves, plan, images, stream);
    return true;
  }
  if (plan.walks_images) {
    launch_packed_images(args, halves, plan, images, stream);
    return true;
  }
  whole_lines(args) ? launch_halves<T, true>(args, halves, plan, images, stream)
                    : launch_halves<T, false>(args, halves, plan, images, stream);
  return true;
}

template bool launch_packed_forward(const ForwardArguments<Float16>&, const Ss2dGpuPlan&, int64_t,
                                    GpuStream);
template bool launch_packed_forward(const ForwardArguments<BFloat16>&, const Ss2dGpuPlan&, int64_t,
                                    GpuStream);

}  // namespace linescan
