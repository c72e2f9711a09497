// ss2d on planes of several tiles, for half data and one state: every piece's effect on the state that
// enters it, as piece_transfers_kernel of tile_states.cu finds it, by the packed kernels' means.
//
// A lane walks a line of the plane, or as many tiles of it as one warp is to walk (gpu_lines.cuh), and leaves the effect of
// each piece.
//
// Source:    docs/decisions/0047-eight-steps-on-planes-of-tiles.md.
// Numerics:  as packed_forward.cu.
// Reference: reference.cpp beside this file. Chosen by piece_states in tile_states.cu.

#include <type_traits>

#include "linescan/ops/ss2d/gpu_launch.cuh"
#include "linescan/ops/ss2d/gpu_lines.cuh"

namespace linescan {
namespace {

constexpr int kPieceWarps = 8;
// Blocks of a multiprocessor: 80 registers a thread, or, for longer records, 128.
constexpr int kPieceBlocks = 3, kLongRecordBlocks = 2;
constexpr int kPieceTiles = 16;  // that a warp walks: longer lines are cut, for flat planes
constexpr int kPieceLines = kPieceWarps * kGpuSegments;

// transfers [slots, routes, pieces, channels]: (factor, offset). kBackward: of the gradient that comes
// back, from gout of type G, whose walk begins at the lines' ends; else of the state. A route has `route_blocks` blocks, those
// that walk its lines' first tiles, then those of the next ones; of routes with fewer lines or tiles some have nothing to do.
template <typename T, typename G, int kHalves, bool kBackward>
__global__ void __launch_bounds__(32 * kPieceWarps, kHalves == 1 ? kPieceBlocks : kLongRecordBlocks)
    packed_transfers_kernel(Ss2dGpuArguments<T> args, GpuPlanes<const G> gout, int route_blocks,
                            float2* transfers) {
  BlockNumber number;
  const int channel_group = number.take(args.channel_groups);  // neighbours share the records
  const int route_block = number.take(route_blocks), k = number.take(args.routes);
  const BlockPlace place(args, int64_t{number.rest}, channel_group);
  const int code = kBackward ? args.codes[k] ^ kReverseInLine : args.codes[k];
  const TileRoute route(args, place, code);
  const bool back = code & kReverseInLine;
  const int tiles = code & kColumnMajor ? args.tile_rows : args.tile_columns;
  const int side = code & kColumnMajor ? args.tile_height : args.tile_width;
  const int line_blocks = (route.lines - 1) / kPieceLines + 1;
  const int begun = route_block / line_blocks * kPieceTiles;  // tiles that others walk first
  const int group = route_block % line_blocks * kPieceWarps + static_cast<int>(threadIdx.x) / 32;
  if (begun >= tiles || group * kGpuSegments >= route.lines) return;

  using Input = std::conditional_t<kBackward, G, T>;
  const auto input = [&]() -> const GpuPlanes<const Input>& {
    if constexpr (kBackward)
      return gout;
    else
      return args.x;
  }();
  int tile = back ? tiles - 1 - begun : begun;
  const int before = !back ? tile * side : begun > 0 ? route.length - (tile + 1) * side : 0;
  const OwnLine line(route, group);
  LineTerms<T, Input, kHalves, kBackward> lines(args, place, route, k, group, line, before, input);
  const int channel = lane_channel(args, place);
  const bool stores =
      line.exists && place.group * kGpuChannels + 2 * (threadIdx.x % 32 / 4) < args.channels;
  const float rate[2] = {lines.rate[0], lines.rate[1]};

  const auto steps_of_tile = [&] { return min(side, route.length - tile * side); };
  // The pieces of the lane's line, in the order of the walk.
  const int64_t piece =
      static_cast<int64_t>(line.number) * tiles + (kBackward ? tiles - 1 - begun : begun);
  const int next_piece = kBackward ? -args.channels : args.channels;
  float2* at =
      transfers + ((place.slot * args.routes + k) * args.pieces + piece) * args.channels + channel;

  int left = steps_of_tile();  // of the tile, from the segment at hand on
  lines.load(left);
  float length[2] = {}, offset[2] = {};
  for (int todo = min(kPieceTiles, tiles - begun); todo > 0;) {
    float delta[kGpuLineSteps][2], terms[kGpuLineSteps][2];
    lines.multiply(delta, terms);
    const int count = min(left, kGpuLineSteps);
    left -= count;
    const bool ends = left == 0;
    if (ends) {
      --todo;
      tile += back ? -1 : 1;
      if (todo > 0) left = steps_of_tile();
    }
    if (left > 0) lines.move(count), lines.load(left);

    const auto walk = [&]<bool kWhole>() {
#pragma unroll
      for (int t = 0; t < kGpuLineSteps; ++t)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float size = softplus_base2(delta[t][c]), term = terms[t][c];
          if (!kWhole && t >= count) size = term = 0;
          length[c] += size;
          const float a = exp2_approx(size * rate[c]);
          offset[c] = kBackward ? a * (offset[c] + term) : fmaf(a, offset[c], size * term);
        }
    };
    count == kGpuLineSteps ? walk.template operator()<true>() : walk.template operator()<false>();
    if (!ends) continue;
    // Steps are in units of ln 2, and so is what they add to a state.
    constexpr float kUnit = kBackward ? 1.0f : kLn2;
    if (stores)
      *reinterpret_cast<float4*>(at) =
          make_float4(exp2_approx(length[0] * rate[0]), kUnit * offset[0],
                      exp2_approx(length[1] * rate[1]), kUnit * offset[1]);
    at += next_piece;
    for (int c = 0; c < 2; ++c) length[c] = offset[c] = 0;
  }
}

template <typename T, typename G, bool kBackward>
void launch_transfers(const Ss2dGpuArguments<T>& args, const GpuPlanes<const G>& gout, int halves,
                      int64_t images, float2* transfers, GpuStream stream) {
  const auto blocks_of = [](int64_t lines, int64_t tiles) {
    return ceil_div(lines, int64_t{kPieceLines}) * ceil_div(tiles, int64_t{kPieceTiles});
  };
  const int64_t route_blocks =
      std::max(blocks_of(args.height, args.tile_columns), blocks_of(args.width, args.tile_rows));
  const int64_t blocks = images * args.routes * route_blocks * args.channel_groups;
  dispatch_halves(halves, [&]<int kHalves>() {
    launch("ss2d packed_transfers", packed_transfers_kernel<T, G, kHalves, kBackward>,
           {blocks, 32 * kPieceWarps}, stream, args, gout, static_cast<int>(route_blocks),
           transfers);
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

template <typename T>
bool packed_returning_transfers(const Ss2dGpuArguments<T>& args, const GpuPlanes<const void>& gout,
                                DType gout_dtype, int64_t images, float2* transfers,
                                GpuStream stream) {
  const int halves = packed_halves(args);
  if (halves == 0 || !packed_pairs(gout, size_of(gout_dtype), args.width)) return false;
  const auto run = [&]<typename G>() {
    const GpuPlanes<const G> typed = {static_cast<const G*>(gout.data), gout.batch, gout.channel,
                                      gout.pixel};
    launch_transfers<T, G, true>(args, typed, halves, images, transfers, stream);
    return true;
  };
  if (gout_dtype == kDTypeOf<T>) return run.template operator()<T>();
  if (gout_dtype == DType::kFloat32) return run.template operator()<float>();
  return false;
}
template bool packed_returning_transfers(const Ss2dGpuArguments<Float16>&,
                                         const GpuPlanes<const void>&, DType, int64_t, float2*,
                                         GpuStream);
template bool packed_returning_transfers(const Ss2dGpuArguments<BFloat16>&,
                                         const GpuPlanes<const void>&, DType, int64_t, float2*,
                                         GpuStream);

}  // namespace linescan
