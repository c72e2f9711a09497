// ss2d, forward, for half data and an even number of states on planes of one tile: as packed_forward.cu, with a loop over
// pairs of states in every chunk.
//
//   dt2 = log2(1 + exp(dt_weight dts + dt_bias))          a[n] = exp2(dt2 A[n])
//   h[t,n] = a[n] h[t-1,n] + dt2 B[n] x[t]                y = ln 2 * sum over routes of (sum_n C[n] h[n] + D x / ln 2)
//
// A lane walks its segment twice for a pair: from zero, which shows what the four segments of a chunk leave to each other, and
// from the state that enters. What a segment does to a state is 2^(A times the sum of its steps): those sums are the same for all
// states.
//
// Source:    docs/decisions/0043-ss2d-walks-planes-with-several-states.md.
// Numerics:  state and sums in float; delta's products are exact; dt2 has an absolute error of 1e-7.
// Reference: reference.cpp beside this file. Chosen by launch_forward in forward.cu.

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/ss2d/gpu_packed_results.cuh"
#include "linescan/ops/ss2d/gpu_packed_states.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"
#include "linescan/ops/ss2d/gpu_sums.cuh"

namespace linescan {
namespace {

template <typename T, int kEights, bool kWhole, bool kSolo>
__global__ void __launch_bounds__(32 * kGpuPackedWarps)
    packed_states_forward_kernel(ForwardArguments<T> args) {
  const BlockPlace place(args);
  int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  keep(warps);
  keep(warp);
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  StateMemory memory(behind_sums(sums, place, false), args);
  memory.begin(args, place);
  StateLinks<kSolo> links(memory, warp, warps);
  const int first_channel = lane_channel(args, place);
  const bool wanted = args.out.data && place.group * kGpuChannels + 2 * g < args.channels;
  const StateTable table(args);
  const bool keeps = args.starts && q < 2;  // one state of a pair
  __syncthreads();

  int chunk = warp;  // of the route; behind its end, of the next one
  for (int k = 0; k < args.routes; ++k) {
    const ChunkRoute route(args, place, args.codes[k]);
    const PlaneWalk<const T> x_walk(args.x.data + place.image * args.x.batch + first_channel,
                                    args.x.pixel, route);
    const RecordWalk<T, kEights, kWhole> dts_walk(args, place, route, k);
    const RecordWalk<T, 1, kWhole> B_walk(args, place, route, k, args.rank);
    const SumWalk sum_walk(sums, place, route);
    const ResultWalk<T> result_walk(args, place, route);
    const PackedWeights<T, kEights> weights(args, place, k);
    const float2* const rates = memory.rates + k * args.states * (kGpuChannels / 2) + g;
    float skip[2];
    for (int i = 0; i < 2; ++i)
      skip[i] = k == 0 ? kLog2e * skip_of_routes(args, first_channel + i) : 0.0f;
    const bool last_route = k == args.routes - 1;

    const int chunks = route.chunks();
    bool behind = k > 0;  // whether other warps may still add to the sums of the route before
    for (; chunk < chunks; chunk += warps) {
      // Segments of a chunk are neighbours: the lane's own, and that of the records which it multiplies.
      const SegmentCursor here(route, chunk * kGpuSegments + q);
      const SegmentCursor column(route, chunk * kGpuSegments + g / 2);
      const int valid = here.template valid<kWhole>(route);
      RecordColumns<T, kEights> records;
      dts_walk.load(records, route, column);
      Two<T> x[kGpuSegmentSteps];
      load_steps<kWhole>(x, x_walk, route, here);
      StateFactors<T> factors;
      factors.load(args, B_walk, route, column, 0);

      float dt[2 * kGpuProducts][2];
      weights.multiply(records, dt);
      float in[kGpuSegmentSteps][2], y[kGpuSegmentSteps][2];
      float steps[2] = {};  // sums over the segment
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          dt[t][i] = softplus_base2(dt[t][i]);
          // Steps of size zero leave the state as it is; nothing follows whole lines.
          if (!kWhole && t >= valid) dt[t][i] = 0;
          in[t][i] = dt[t][i] * x[t][i];
          y[t][i] = skip[i] * x[t][i];
          steps[i] += dt[t][i];
        }
      }

      auto* const kept = table.several_at<T>(k, chunk, q, g);
#pragma unroll 1
      for (int pair = 0; pair < memory.pairs; ++pair) {
        if (pair > 0 && pair % 4 == 0) factors.load(args, B_walk, route, column, 2 * pair);
        // Of two states and channels: what steps do, and what the segments up to this one do to what enters the chunk.
        float a[2][kGpuSegmentSteps][2], b[2][kGpuSegmentSteps][2], C[2][2 * kGpuProducts];
        Affine up_to[2][2];
        float B[2][2 * kGpuProducts];
        factors.multiply(pair % 4, q, B, C);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const float2 rates_of_state = rates[(2 * pair + s) * (kGpuChannels / 2)];
          const float rate[2] = {rates_of_state.x, rates_of_state.y};
#pragma unroll
          for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int t = 0; t < kGpuSegmentSteps; ++t) {
              a[s][t][i] = exp2_approx(dt[t][i] * rate[i]);
              b[s][t][i] = in[t][i] * B[s][t];
            }
            Affine& all = up_to[s][i];
            all = {exp2_approx(steps[i] * rate[i]), b[s][0][i]};
#pragma unroll
            for (int t = 1; t < kGpuSegmentSteps; ++t)
              all.offset = fmaf(a[s][t][i], all.offset, b[s][t][i]);
            include_lanes<kGpuSegments, false>(all, q);
          }
        }
        const float4 taken = links.take(pair);
        const bool begins = chunk == 0;
        const float entered[2][2] = {{begins ? 0 : taken.x, begins ? 0 : taken.y},
                                     {begins ? 0 : taken.z, begins ? 0 : taken.w}};
        if (keeps) {
          const float first = q == 0 ? entered[0][0] : entered[1][0];
          const float second = q == 0 ? entered[0][1] : entered[1][1];
          kept[pair * kGpuChannels] = two_of<KeptState<T>>(kLn2 * first, kLn2 * second);
        }
        float h[2][2];
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
          for (int i = 0; i < 2; ++i) h[s][i] = up_to[s][i](entered[s][i]);
        links.give(pair, q, kGpuSegments - 1, make_float4(h[0][0], h[0][1], h[1][0], h[1][1]));
#pragma unroll
        for (int s = 0; s < 2; ++s)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            h[s][i] = from_lane_before<kGpuSegments, false>(h[s][i], q, entered[s][i]);
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
          for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              h[s][i] = fmaf(a[s][t][i], h[s][i], b[s][t][i]);
              y[t][i] = fmaf(C[s][t], h[s][i], y[t][i]);
            }
      }
      links.next_chunk();

      const SegmentSums<kWhole> own_sums(sum_walk, route, here, valid);
      if (behind) {
        __syncthreads();
        behind = false;
      }
      float2 result[kGpuSegmentSteps];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        result[t] = make_float2(y[t][0], y[t][1]);
        if (k == 0) continue;
        const float2 so_far = own_sums.read(t);
        result[t] = make_float2(result[t].x + so_far.x, result[t].y + so_far.y);
      }
      if (last_route)
        result_walk.write(here, wanted ? valid : 0, result);
      else
        own_sums.write(result);
    }
    chunk -= chunks;
    if (behind) __syncthreads();
  }
}

}  // namespace

template <typename T>
bool launch_packed_states(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                          GpuStream stream) {
  if (!packed_states_data(args, plan) || !packed_result(args)) return false;
  const LaunchShape shape = {plan.blocks_an_image() * images, static_cast<int>(plan.block),
                             plan.shared_bytes};
  dispatch_states(args, plan, [&]<int kEights, bool kWhole, bool kSolo>() {
    launch("ss2d packed_states_forward", packed_states_forward_kernel<T, kEights, kWhole, kSolo>,
           shape, stream, args);
  });
  return true;
}

template bool launch_packed_states(const ForwardArguments<Float16>&, const Ss2dGpuPlan&, int64_t,
                                   GpuStream);
template bool launch_packed_states(const ForwardArguments<BFloat16>&, const Ss2dGpuPlan&, int64_t,
                                   GpuStream);

}  // namespace linescan
