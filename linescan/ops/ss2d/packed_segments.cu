// ss2d in cells (gpu_cells.cuh): what leads to every segment of eight steps from its line's begin, and the lines' effects on the state that
// enters them, as packed_tile_states.cu finds those of pieces.
//
// A lane walks a line of the plane from end to end; all segments are whole.
//
// Source:    docs/decisions/0073-cells.md.
// Numerics:  as packed_forward.cu; decays are multiplied up.
// Reference: reference.cpp beside this file. Chosen by piece_states in tile_states.cu.

#include "linescan/ops/ss2d/gpu_launch.cuh"
#include "linescan/ops/ss2d/gpu_lines.cuh"

namespace linescan {
namespace {

constexpr int kSegmentWarps = 4,
              kSegmentBlocks = 6;  // of a block; of a multiprocessor: 80 registers
constexpr int kSegmentLines = kSegmentWarps * kGpuSegments;

// args.segments, transfers [slots, routes, pieces, channels]: (factor, offset). kBackward: of the gradient that comes
// back, from the result's gradient as `input`, whose walk begins at the lines' ends; else of the state, from x. A route has
// `route_blocks` blocks; of routes with fewer lines some have nothing to do.
template <typename T, bool kBackward>
__global__ void __launch_bounds__(32 * kSegmentWarps, kSegmentBlocks)
    packed_segments_kernel(Ss2dGpuArguments<T> args, GpuPlanes<const T> input, int route_blocks,
                           float2* transfers) {
  BlockNumber number;
  const int channel_group = number.take(args.channel_groups);  // neighbours share the records
  const int route_block = number.take(route_blocks), k = number.take(args.routes);
  const BlockPlace place(args, int64_t{number.rest}, channel_group);
  const TileRoute route(args, place, kBackward ? args.codes[k] ^ kReverseInLine : args.codes[k]);
  const int group = route_block * kSegmentWarps + static_cast<int>(threadIdx.x) / 32;
  if (group * kGpuSegments >= route.lines) return;

  const OwnLine line(route, group);
  LineTerms<T, T, 1, kBackward> lines(args, place, route, k, group, line, 0, input);
  const float rate[2] = {lines.rate[0], lines.rate[1]};
  const int channel = lane_channel(args, place);
  lines.template load<true>(kGpuLineSteps);

  int left = route.length / kGpuLineSteps;
  const int64_t first_line = (place.slot * args.routes + k) * route.lines + line.number;
  const int64_t segment = first_line * left + (kBackward ? left - 1 : 0);
  float2* at = args.segments + segment * args.channels + channel;
  const int next = kBackward ? -args.channels : args.channels;
  float factor[2] = {1, 1}, offset[2] = {};
  // Steps are in units of ln 2, and so is what they add to a state.
  constexpr float kUnit = kBackward ? 1.0f : kLn2;
  const auto store = [&](float2* to) {
    if (line.exists)
      *reinterpret_cast<float4*>(to) =
          make_float4(factor[0], kUnit * offset[0], factor[1], kUnit * offset[1]);
  };
#pragma unroll 1
  for (; left > 0; --left) {
    float delta[kGpuLineSteps][2], terms[kGpuLineSteps][2];
    lines.multiply(delta, terms);
    if (left > 1) {
      lines.move(kGpuLineSteps);
      lines.template load<true>(kGpuLineSteps);
    }
    store(at);
    at += next;
#pragma unroll
    for (int t = 0; t < kGpuLineSteps; ++t)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float size = softplus_base2(delta[t][c]), a = exp2_approx(size * rate[c]);
        factor[c] *= a;
        offset[c] =
            kBackward ? a * (offset[c] + terms[t][c]) : fmaf(a, offset[c], size * terms[t][c]);
      }
  }
  store(transfers + ((place.slot * args.routes + k) * args.pieces + line.number) * args.channels +
        channel);
}

template <typename T, bool kBackward>
void launch_segments(const Ss2dGpuArguments<T>& args, const GpuPlanes<const T>& input,
                     int64_t images, float2* transfers, GpuStream stream) {
  const int64_t route_blocks =
      ceil_div(int64_t{std::max(args.height, args.width)}, int64_t{kSegmentLines});
  launch("ss2d packed_segments", packed_segments_kernel<T, kBackward>,
         {images * args.routes * route_blocks * args.channel_groups, 32 * kSegmentWarps}, stream,
         args, input, static_cast<int>(route_blocks), transfers);
}

}  // namespace

template <typename T>
void packed_segments(const Ss2dGpuArguments<T>& args, int64_t images, float2* transfers,
                     GpuStream stream) {
  launch_segments<T, false>(args, args.x, images, transfers, stream);
}
template <typename T>
void packed_returning_segments(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                               int64_t images, float2* transfers, GpuStream stream) {
  const GpuPlanes<const T> typed = {static_cast<const T*>(gout.data), gout.batch, gout.channel,
                                    gout.pixel};
  launch_segments<T, true>(args, typed, images, transfers, stream);
}

template void packed_segments(const Ss2dGpuArguments<Float16>&, int64_t, float2*, GpuStream);
template void packed_segments(const Ss2dGpuArguments<BFloat16>&, int64_t, float2*, GpuStream);
template void packed_returning_segments(const Ss2dGpuArguments<Float16>&,
                                        const GpuPlanes<const void>&, int64_t, float2*, GpuStream);
template void packed_returning_segments(const Ss2dGpuArguments<BFloat16>&,
                                        const GpuPlanes<const void>&, int64_t, float2*, GpuStream);

}  // namespace linescan
