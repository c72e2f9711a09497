// ss2d, forward, for half data and one state on small planes: the steps of packed_forward.cu, an image a lane.
//
// Lane 4 g + q owns two channels of image q of four, all places of the plane, and walks every route from end to end: no state
// crosses lanes, and nobody else touches its sums. The warps of a block have neighbouring channels of the same images: what one
// reads of the records, the next one finds in the first-level cache.
//
// Source:    docs/decisions/0045-an-image-a-lane-on-small-planes.md.
// Numerics:  as packed_forward.cu.
// Reference: reference.cpp beside this file. Chosen by launch_packed_forward in packed_forward.cu.

#include "linescan/ops/ss2d/gpu_packed_results.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {
namespace {

// `images`: of the slice.
template <typename T, int kHalves, bool kWhole>
__global__ void __launch_bounds__(32 * kGpuImageWarps, kGpuImageBlocks)
    packed_images_forward_kernel(ForwardArguments<T> args, int64_t images) {
  constexpr int kDistance = kGpuImageDistance;
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  const int teams = (args.channel_groups + kGpuImageWarps - 1) / kGpuImageWarps;
  const int group = static_cast<int>(blockIdx.x % teams) * kGpuImageWarps + warp;
  const int64_t four = blockIdx.x / teams;
  const int64_t first = four / kDistance * (kGpuSegments * kDistance) + four % kDistance;
  if (group >= args.channel_groups || first >= images) return;
  // The lane's own image, and that whose records it multiplies; lanes past the last image repeat it.
  const bool exists = first + q * kDistance < images;
  const BlockPlace place(args, min(first + q * kDistance, images - 1), group);
  const BlockPlace column_place(args, min(first + g / 2 * kDistance, images - 1), group);
  auto* sums = keep_shared(reinterpret_cast<float2*>(shared_memory()) +
                           warp * (32 * place.height * place.width) + threadIdx.x % 32);
  const int first_channel = lane_channel(args, place);
  const int channel[2] = {first_channel, first_channel + 1};
  const bool wanted =
      exists && group * kGpuChannels + 2 * g < args.channels && args.out.data != nullptr;
  const PackedFactors<T, kHalves> factors(args);

  for (int k = 0; k < args.routes; ++k) {
    const ChunkRoute route(args, place, args.codes[k]);
    const PlaneWalk<const T> x_walk(args.x.data + place.image * args.x.batch + first_channel,
                                    args.x.pixel, route);
    const RecordWalk<T, kHalves, kWhole> record_walk(args, column_place, route, k);
    const SumWalk sum_walk(sums, route);
    const ResultWalk<T> result_walk(args, place, route);
    const PackedWeights<T, kHalves> weights(args, place, k);
    float rate[2], skip[2];
    for (int i = 0; i < 2; ++i) {
      rate[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel[i]]);
      skip[i] = k == 0 ? kLog2e * skip_of_routes(args, channel[i]) : 0.0f;
    }
    float2* starts = args.starts && exists
                         ? StateTable(args, place.slot * args.channel_groups + group).at(k, 0, 0, g)
                         : nullptr;
    const bool last_route = k == args.routes - 1;

    RecordColumns<T, kHalves> records;
    Two<T> next[kGpuSegmentSteps];
    record_walk.load(records, route, SegmentCursor(route, 0));
    load_steps<kWhole>(next, x_walk, route, SegmentCursor(route, 0));
    float h[2] = {0, 0};
    for (int index = 0; index < route.segments; ++index) {
      float dt[2 * kGpuProducts][2], B[2 * kGpuProducts], C[2 * kGpuProducts];
      weights.multiply(records, dt);
      factors.multiply(records, B, C);
      Two<T> x[kGpuSegmentSteps];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) x[t] = next[t];
      const SegmentCursor here(route, index), following(route, index + 1);
      record_walk.load(records, route, following);
      load_steps<kWhole>(next, x_walk, route, following);

      const int valid = here.template valid<kWhole>(route);
      const SegmentSums<kWhole> own_sums(sum_walk, route, here, valid);
      float2 result[kGpuSegmentSteps];
      if (k == 0) {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
          result[t] = make_float2(skip[0] * x[t][0], skip[1] * x[t][1]);
      } else {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) result[t] = own_sums.read(t);
      }
      if (!kWhole && route.restart && here.part == 0) h[0] = h[1] = 0;
      if (starts && index % kGpuSegments == 0)
        starts[index / kGpuSegments * (kGpuChannels / 2)] = make_float2(kLn2 * h[0], kLn2 * h[1]);
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // Steps of size zero leave the state as it is.
          const float size = kWhole || t < valid ? softplus_base2(dt[t][i]) : 0;
          h[i] = fmaf(exp2_approx(size * rate[i]), h[i], size * x[t][i] * B[t]);
        }
        result[t] = make_float2(fmaf(C[t], h[0], result[t].x), fmaf(C[t], h[1], result[t].y));
      }
      if (last_route)
        result_walk.write(here, wanted ? valid : 0, result);
      else
        own_sums.write(result);
    }
  }
}

template <typename T, bool kWhole>
void launch_whole(const ForwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                  int64_t images, GpuStream stream) {
  dispatch_halves(halves, [&]<int kHalves>() {
    launch("ss2d packed_images_forward", packed_images_forward_kernel<T, kHalves, kWhole>,
           {plan.blocks_of_images(images), static_cast<int>(plan.block), plan.shared_bytes}, stream,
           args, images);
  });
}

}  // namespace

template <typename T>
void launch_packed_images(const ForwardArguments<T>& args, int halves, const Ss2dGpuPlan& plan,
                          int64_t images, GpuStream stream) {
  whole_lines(args) ? launch_whole<T, true>(args, halves, plan, images, stream)
                    : launch_whole<T, false>(args, halves, plan, images, stream);
}

template void launch_packed_images(const ForwardArguments<Float16>&, int, const Ss2dGpuPlan&,
                                   int64_t, GpuStream);
template void launch_packed_images(const ForwardArguments<BFloat16>&, int, const Ss2dGpuPlan&,
                                   int64_t, GpuStream);

}  // namespace linescan
