// ss2d, backward, for half data and one state on planes of one tile: as backward.cu, with two channels or
// numbers an access.
//
//   gh[t] = C[t] gy[t] + c[t+1]          c[t] = a[t] gh[t]          a = exp(dt A), from the end
//   gx   += D gy + gh dt B               gB = sum over channels of gh dt x          gC of gy h
//   gdelta = sigmoid(delta) (A c h[t-1] + gh B x)          gA += dt c h[t-1]
//
// The states that enter the chunks come from the forward pass, or from another run of it. Chunks are
// taken from the last to the first, the gradient handed on from warp to warp; the first route starts
// the sums for gx in shared memory, the last one takes them to global memory.
//
// The gradients of delta, and of B and C, sums over the block's channels, are stored for delta_products.cu.
//
// Source:    linescan/ops/ss2d/README.md; docs/decisions/0011-ss2d-on-gpus.md, 0030 and 0033.
// Numerics:  recurrences and sums in float; what is stored is rounded to T, and B's and C's addends before
//            they are summed on the tensor cores. No atomics.
// Reference: reference.cpp beside this file. Chosen by launch_backward in backward.cu.

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/ss2d/gpu_packed_gradients.cuh"
#include "linescan/ops/ss2d/gpu_plane_stage.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {
namespace {

template <typename T, typename G, int kHalves, bool kWhole, PackedBlock kBlock>
__global__ void __launch_bounds__(32 * kGpuPackedWarps)
    packed_backward_kernel(BackwardArguments<T> args, bool by_sixteen) {
  constexpr bool kSolo = kBlock == PackedBlock::kWarp, kOfChunks = kBlock == PackedBlock::kChunks;
  const BlockPlace place(args);
  int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  keep(warps);
  keep(warp);
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  using XStage = PlaneStage<T, kWhole>;
  using GyStage = PlaneStage<G, kWhole>;
  constexpr int kStage = XStage::kBytes + GyStage::kBytes;
  auto* const stages = reinterpret_cast<unsigned char*>(behind_sums(sums, place, kOfChunks));
  XStage x_stage(stages + warp * kStage, args.channels, place, by_sixteen);
  GyStage gy_stage(stages + warp * kStage + XStage::kBytes, args.channels, place, by_sixteen);
  StateChain<kSolo ? ChainLink::kNone : ChainLink::kBarriers> chain(stages + warps * kStage, warp,
                                                                    warps, true);
  const int first_channel = lane_channel(args, place);
  const int channel[2] = {first_channel, first_channel + 1};
  const bool inside = place.group * kGpuChannels + 2 * g < args.channels;
  const bool exists[2] = {inside, inside};
  const PackedFactors<T, kHalves> factors(args);
  const auto gout = args.template gout_as<G>();

  const int routes = kOfChunks ? 1 : args.routes;
  for (int k = 0; k < routes; ++k) {
    const ChunkRoute route(args, place, args.codes[k]);
    x_stage.start_route(args.x, place, route);
    gy_stage.start_route(gout, place, route);
    const RecordWalk<T, kHalves, kWhole> record_walk(args, place, route, k);
    const SumWalk sum_walk(sums, place, route, kOfChunks);
    const PackedWeights<T, kHalves> weights(args, place, k);
    StoredGradients<T, kHalves> gradients(args, place, route, k);
    ChannelGradients parameters;
    float skip[2];
    for (int i = 0; i < 2; ++i) {
      parameters.A[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel[i]]);
      skip[i] = k == 0 ? skip_of_routes(args, channel[i]) : 0.0f;
    }

    const bool last_route = k == routes - 1;
    const int chunks = route.chunks();
    const int last_chunk = warp < chunks ? (chunks - 1 - warp) / warps * warps + warp : 0;
    const float2* starts = StateTable(args).at(k, 0, 0, g);

    RecordColumns<T, kHalves> records;
    float2 next_start;
    // Segments of a chunk are neighbours: the lane's own, and that of the records which it multiplies.
    const auto own_at = [&](int chunk) { return SegmentCursor(route, chunk * kGpuSegments + q); };
    SegmentCursor next;
    const auto load = [&](int chunk, bool wanted) {  // all but the records
      next = own_at(chunk);
      x_stage.fetch(route, next, wanted);
      gy_stage.fetch(route, next, wanted);
      commit_copies();
      next_start = starts[chunk * (kGpuChannels / 2)];
    };
    const auto load_records = [&](int chunk) {
      record_walk.load(records, route, SegmentCursor(route, chunk * kGpuSegments + g / 2));
    };
    load_records(last_chunk);
    load(last_chunk, warp < chunks);
    bool behind = k > 0;  // whether other warps may still add to the sums of the route before
    for (int chunk = last_chunk; warp < chunks && chunk >= 0; chunk -= warps) {
      const SegmentCursor here = next;
      const int valid = here.template valid<kWhole>(route);
      BackwardSegment<T, G> s;
      float delta[2 * kGpuProducts][2];
      weights.multiply(records, delta);
      factors.multiply(records, s.B, s.C);
      gradients.start_chunk(records);
      wait_copies<0>();
      __syncwarp();
      x_stage.read(s.x);
      gy_stage.read(s.gy);
      __syncwarp();
      // Steps of size and gradient zero are none: behind the end of a line, and of the route.
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t)
        if (t >= valid) s.gy[t] = Two<G>{};
      const float2 start = next_start;
      // The next chunk's numbers are fetched meanwhile. If there are others to hurry for, without a branch, which would delay
      // what is handed on.
      if (!kSolo || chunk >= warps) load(max(chunk - warps, 0), chunk >= warps);
      const SegmentSums<kWhole> own_sums(sum_walk, route, here, valid);
      if (k == 0) {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          const float gy0 = s.gy[t][0], gy1 = s.gy[t][1];
          parameters.g_D[0] = fmaf(gy0, s.x[t][0], parameters.g_D[0]);
          parameters.g_D[1] = fmaf(gy1, s.x[t][1], parameters.g_D[1]);
          own_sums.write(t, make_float2(skip[0] * gy0, skip[1] * gy1));
        }
      }

      // Forward again: the states of the segment. A line that starts anew passes on nothing from before.
      s.find_factors(delta, parameters.A, kWhole ? kGpuSegmentSteps : valid);
      const bool anew = !kWhole && route.restart && here.part == 0 && valid > 0;
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float entered = i ? start.y : start.x;
        Affine all = {anew ? 0.0f : 1.0f, 0};
        factor[i] = 1;
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          factor[i] *= s.a[t][i];
          all.offset = fmaf(s.a[t][i], all.offset, s.dt[t][i] * s.x[t][i] * s.B[t]);
        }
        all.factor *= factor[i];
        float leaves;
        const float enters = pass_lanes<kGpuSegments, false>(all, q, entered, leaves);
        s.find_states(i, anew ? 0.0f : enters);
      }

      // Back: nothing comes back from behind a line's end where lines start anew.
      const bool ends =
          !kWhole && route.restart && valid > 0 && here.part == route.segments_a_line - 1;
      Affine all[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        all[i] = {ends ? 0.0f : factor[i], 0};
#pragma unroll
        for (int t = kGpuSegmentSteps - 1; t >= 0; --t)
          all[i].offset = s.a[t][i] * fmaf(s.C[t], s.gy[t][i], all[i].offset);
        include_lanes<kGpuSegments, true>(all[i], q);
      }
      if (behind) {
        __syncthreads();
        behind = false;
      }
      const float2 returned = chunk + 1 < chunks ? chain.take(all[1].factor) : make_float2(0, 0);
      const float2 left = make_float2(all[0](returned.x), all[1](returned.y));
      if (chunk > 0) chain.give(q, 0, left);
      float c[2] = {from_lane_before<kGpuSegments, true>(left.x, q, returned.x),
                    from_lane_before<kGpuSegments, true>(left.y, q, returned.y)};
      if (ends) c[0] = c[1] = 0;

      const int pixels = route.pixels_to(here.line, here.part);
      gradients.start_walk(route, pixels);
      walk_back(s, c, parameters, own_sums, gradients, valid);
      // Not before: registers are full until here. Unconditional, or they are fetched earlier after all.
      load_records(max(0, chunk - warps));
      if (last_route) write_gx(args, place, route, pixels, valid, inside, own_sums);
    }
    if (behind) __syncthreads();
    const ParameterSums::Place sum_place = args.parameter_sums.place(args, place, k, warp, channel);
    parameters.store(sum_place, exists);
    gradients.finish_route(sum_place, exists);
  }
}

template <typename G, bool kWhole, typename T>
void launch_halves(const BackwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                   int64_t images, GpuStream stream) {
  const LaunchShape shape = {plan.blocks_an_image() * images, static_cast<int>(plan.block),
                             plan.shared_bytes};
  const bool sixteen = by_sixteen(args.x, sizeof(T), args.channels) &&
                       by_sixteen(args.gout, sizeof(G), args.channels);
  dispatch_halves(halves, [&]<int kHalves>() {
    dispatch_block<kHalves>(plan, [&]<PackedBlock kBlock>() {
      launch("ss2d packed_backward", packed_backward_kernel<T, G, kHalves, kWhole, kBlock>, shape,
             stream, args, sixteen);
    });
  });
}

}  // namespace

template <typename T>
bool packs_backward(const BackwardArguments<T>& args) {
  return packed_halves(args) > 0 && packed_gradients(args);
}

template <typename T>
void launch_packed_backward(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan,
                            int64_t images, GpuStream stream) {
  if (args.segments) return launch_packed_cells(args, plan, images, stream);
  const auto run = [&]<typename G>() {
    if (args.pieces > 0)
      return launch_packed_lines<G>(args, packed_halves(args), plan, images, stream);
    whole_lines(args) ? launch_halves<G, true>(args, packed_halves(args), plan, images, stream)
                      : launch_halves<G, false>(args, packed_halves(args), plan, images, stream);
  };
  args.gout_dtype == DType::kFloat32 ? run.template operator()<float>()
                                     : run.template operator()<T>();
}

template bool packs_backward(const BackwardArguments<Float16>&);
template bool packs_backward(const BackwardArguments<BFloat16>&);
template void launch_packed_backward(const BackwardArguments<Float16>&, const Ss2dGpuPlan&, int64_t,
                                     GpuStream);
template void launch_packed_backward(const BackwardArguments<BFloat16>&, const Ss2dGpuPlan&,
                                     int64_t, GpuStream);

}  // namespace linescan
