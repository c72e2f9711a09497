// Selective scan on the GPU with one state, backward. Walks a row's tiles from the last one to the first;
// the state at a tile's start is known (one_state_forward.cu has left it).
//
//   Equations, shapes and sums as in backward.cu.
//
// Lanes lie along the length (gpu_one_state.cuh). Sums over rows stay in a lane's registers while its
// warp meets the rows in turn, then go over the block's warps, blocks and batch; sums over steps (A, D,
// delta_bias) over the lanes of a row. Every order is fixed by the plan.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_one_state_back.cuh"

namespace linescan {
namespace {

template <int kLanes>
using BackwardPlace = OneStatePlace<kLanes, kOneItems>;

// A row's sums over the tiles so far.
struct RowSums {
  float A, D, bias, none;
};

// The block's gradients of B and C at a tile's steps: warps leave theirs, then all threads add them up.
template <int kItems, int kLanes>
__device__ __forceinline__ void finish_factors(const SelectiveScanGpuArguments& args,
                                               const BackwardPlace<kLanes>& place, int tile,
                                               float (&gB)[kItems], float (&gC)[kItems],
                                               float* sums) {
  constexpr int kTile = BackwardPlace<kLanes>::kTile;
#pragma unroll
  for (int mask = kLanes; mask < kGpuWarp; mask *= 2)
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      gB[j] += __shfl_xor_sync(kAllLanes, gB[j], mask);
      gC[j] += __shfl_xor_sync(kAllLanes, gC[j], mask);
    }
  if (place.lane < kLanes) {
    float* own = sums + place.warp * 2 * kTile + place.segment * kItems;
    constexpr int kPack = kItems < 4 ? kItems : 4;
#pragma unroll
    for (int j = 0; j < kItems; j += kPack) {
      Pack<float, kPack> of_B, of_C;
#pragma unroll
      for (int n = 0; n < kPack; ++n) of_B.values[n] = gB[j + n], of_C.values[n] = gC[j + n];
      *reinterpret_cast<Pack<float, kPack>*>(own + j) = of_B;
      *reinterpret_cast<Pack<float, kPack>*>(own + kTile + j) = of_C;
    }
  }
  __syncthreads();
  for (int unit = static_cast<int>(threadIdx.x); unit < kTile / 2; unit += kOneWarps * kGpuWarp) {
    const int which = unit / (kTile / 4), inside = unit % (kTile / 4) * 4;
    const int64_t t = int64_t{tile} * kTile + inside;
    const GpuFactorGradient& f = args.sums[which];
    if (f.data == nullptr || t >= args.length) continue;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int warp = 0; warp < kOneWarps; ++warp) {
      const float4 four =
          *reinterpret_cast<const float4*>(sums + (warp * 2 + which) * kTile + inside);
      total.x += four.x, total.y += four.y, total.z += four.z, total.w += four.w;
    }
    const int item = f.part != 0 ? place.item - args.first_batch : place.item;
    store_four(f.data + place.part * f.part + item * f.batch + place.group * f.group + t * f.step,
               f, total, static_cast<int>(min(args.length - t, int64_t{4})));
  }
}

// What a block has in shared memory.
struct BackwardShared {
  OneStateRow* rows;
  RowSums* row_sums;
  float* factor_sums;

  __device__ __forceinline__ explicit BackwardShared(const SelectiveScanGpuArguments& args) {
    rows = reinterpret_cast<OneStateRow*>(shared_memory());
    row_sums = reinterpret_cast<RowSums*>(rows + args.rows);
    factor_sums = reinterpret_cast<float*>(row_sums + args.rows);
  }
};

// A tile of the block's rows, kItems steps a lane.
template <typename T, typename G, int kItems, int kLanes>
__device__ __forceinline__ void walk_tile(const SelectiveScanGpuArguments& args,
                                          const BackwardPlace<kLanes>& place,
                                          const BackwardShared& shared, int tile) {
  using Place = BackwardPlace<kLanes>;
  OneStateRow* const rows = shared.rows;
  const GpuSequence &u = args.inputs[0], &delta = args.inputs[1], &gradient = args.inputs[3];
  struct Next {
    GpuRawItems<T, kItems> u, delta;
    GpuRawItems<G, kItems> gy;
    float h;
  };
  const int64_t start = place.template start<kItems>(tile);
  const int steps = place.template count<kItems>(args, tile);
  float B[kItems], C[kItems], gB[kItems] = {}, gC[kItems] = {};
  to_floats(B, load_factor<T, kItems>(args, 0, place, tile));
  to_floats(C, load_factor<T, kItems>(args, 1, place, tile));
  const unsigned char* u_from = place.address(u, start);
  const unsigned char* delta_from = place.address(delta, start);
  const unsigned char* gradient_from = place.address(gradient, start);
  const float* starts =
      tile > 0 ? place.tile_states(args, tile)
      : args.initial_state
          ? args.initial_state + int64_t{place.item} * args.channels + place.channel
          : nullptr;
  const auto fetch = [&](int r) {
    const bool exists = r < place.rows;
    const int count = exists ? steps : 0;
    const Next items{load_items<T, kItems>(u_from, u.step, u.unit, count),
                     load_items<T, kItems>(delta_from, delta.step, delta.unit, count),
                     load_items<G, kItems>(gradient_from, gradient.step, gradient.unit,
                                           gradient.data ? count : 0),
                     exists && starts ? starts[r] : 0};
    u_from += Place::kStride * u.channel;
    delta_from += Place::kStride * delta.channel;
    gradient_from += Place::kStride * gradient.channel;
    return items;
  };
  unsigned char* gu = place.address(args.gu, start);
  unsigned char* gdelta = place.address(args.gdelta, start);
  Next next = fetch(place.row);
#pragma unroll 1
  for (int first = 0; first < place.rows; first += Place::kStride) {
    const int r = first + place.row;
    const bool exists = r < place.rows;
    const Next now = next;
    if (first + Place::kStride < place.rows) next = fetch(r + Place::kStride);
    const OneStateRow own = exists ? rows[r] : OneStateRow{};
    float dt[kItems], slope[kItems];
#pragma unroll
    for (int j = 0; j < kItems; ++j) dt[j] = now.delta[j] + own.bias, slope[j] = 1;
    if (args.softplus)
#pragma unroll
      for (int j = 0; j < kItems; ++j) dt[j] = softplus_and_slope<sizeof(T) == 2>(dt[j], slope[j]);
    if (steps < kItems)
#pragma unroll
      for (int j = 0; j < kItems; ++j)  // steps that change nothing
        if (j >= steps) dt[j] = slope[j] = 0;
    LaneSums sums;
    const float leaves =
        walk_back<kLanes>(own, now.h, place.segment, now.u, now.gy, B, C, dt, slope, gB, gC, sums);
    __syncwarp();  // all lanes have read what the first one now replaces
    if (exists && place.segment == 0) rows[r].carry = leaves;
    const float sum = add_lanes<kLanes>(sums, place.segment);
    if (exists && place.segment % (kLanes / 4) == 0)
      reinterpret_cast<float*>(shared.row_sums + r)[place.segment / (kLanes / 4)] += sum;
    store_items<T>(gu, args.gu.step, args.gu.unit, exists && args.gu.data ? steps : 0, dt);
    store_items<T>(gdelta, args.gdelta.step, args.gdelta.unit,
                   exists && args.gdelta.data ? steps : 0, slope);
    gu += Place::kStride * args.gu.channel, gdelta += Place::kStride * args.gdelta.channel;
  }
  // Two tiles take turns, so that no warp waits for the readers of the tile before.
  finish_factors(args, place, tile, gB, gC,
                 shared.factor_sums + tile % 2 * kOneWarps * 2 * Place::kTile);
}

template <typename T, typename G, int kLanes, bool kTail>
__global__ void __launch_bounds__(kOneWarps* kGpuWarp, 4)
    one_state_backward(const __grid_constant__ SelectiveScanGpuArguments args) {
  using Place = BackwardPlace<kLanes>;
  const Place place(args);
  const BackwardShared shared(args);
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp) {
    shared.rows[r] = one_state_row(args, place.item, place.channel + r, args.last_state);
    shared.row_sums[r] = {};
  }
  __syncthreads();
  int tile = args.tiles - 1;
  if constexpr (kTail) walk_tile<T, G, kOneTailItems>(args, place, shared, tile--);
#pragma unroll 1
  for (; tile >= 0; --tile) walk_tile<T, G, kOneItems>(args, place, shared, tile);
  __syncthreads();
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp) {
    const int64_t at = int64_t{place.item} * args.channels + place.channel + r;
    if (args.initial_gradient) args.initial_gradient[at] = shared.rows[r].carry;
    if (args.A_sums) args.A_sums[at] = shared.row_sums[r].A;
    if (args.D_sums) args.D_sums[at] = shared.row_sums[r].D;
    if (args.bias_sums) args.bias_sums[at] = shared.row_sums[r].bias;
  }
}

}  // namespace

void launch_one_state_backward(const SelectiveScanGpuArguments& args,
                               const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  if (plan.whole_rows > 0) return launch_whole_rows_backward(args, plan, out, stream);
  if (plan.short_rows) return launch_short_rows_backward(args, plan, out, stream);
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    const auto run = [&]<int kLanes>() {
      launch("selective_scan backward",
             plan.tail ? one_state_backward<T, G, kLanes, true>
                       : one_state_backward<T, G, kLanes, false>,
             launch_shape(args, plan), stream, args);
    };
    if (plan.segments == kGpuWarp)
      run.template operator()<kGpuWarp>();
    else
      run.template operator()<kOneFewLanes>();
  });
}

}  // namespace linescan
