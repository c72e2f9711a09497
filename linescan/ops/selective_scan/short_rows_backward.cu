// Selective scan on the GPU with one state and short rows at odd addresses, backward. Walks rows from their
// last tile to the first; the state at a tile's start is known (short_rows_forward.cu has left it).
//
//   Equations, shapes and sums as in backward.cu.
//
// A lane walks a row (gpu_short_rows.cuh). Sums over steps (A, D, delta_bias) grow in the lane; those over rows
// (B, C) go over the lanes tile by tile, then over the blocks. Every order is fixed by the plan.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/selective_scan/gpu_short_rows.cuh"

namespace linescan {
namespace {

// Where a lane writes the sum of B or C that fold_lanes leaves it.
struct FactorSum {
  unsigned char* to = nullptr;  // null: nowhere
  int64_t step;
  DType dtype;
  int item;  // of a tile's steps

  __device__ __forceinline__ FactorSum(const SelectiveScanGpuArguments& args,
                                       const ShortRowsPlace& place) {
    const int number = place.lane / 2;  // of 16, as fold_lanes<1> spreads them: each to two lanes
    const GpuFactorGradient& f = args.sums[number / kShortPitch];
    item = number % kShortPitch;
    step = f.step;
    dtype = f.dtype;
    if (f.data == nullptr || place.lane % 2 != 0 || item >= kShortItems) return;
    const int of_part = f.part != 0 ? place.item - args.first_batch : place.item;
    to = f.data + place.part * f.part + of_part * f.batch + place.group * f.group + item * f.step;
  }
};

template <typename T, typename G>
__global__ void __launch_bounds__(kGpuWarp, kShortBackwardWarps)
    short_rows_backward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const ShortRowsPlace place(args);
  const FactorSum factor_sum(args, place);
  unsigned char* shared = shared_memory();
  T* const all_u = reinterpret_cast<T*>(shared + args.shared.sequence[0]);
  T* const all_delta = reinterpret_cast<T*>(shared + args.shared.sequence[1]);
  G* const all_gradient = reinterpret_cast<G*>(shared + args.shared.sequence[3]);
  float* const B_of = reinterpret_cast<float*>(shared + args.shared.factors);
  float* const C_of = B_of + args.tiles * kShortPitch;
  const bool some_gradient = args.inputs[3].data != nullptr;
  const ShortFactors<T> factors(args, place);
  // The state at a tile's start.
  const float* initial = args.initial_state ? args.initial_state + place.at(args) : nullptr;
  const auto state = [&](int tile) {
    const float* from = tile > 0 ? place.tile_state(args, tile) : initial;
    return tile >= 0 && place.exists && from ? *from : 0;
  };
  float next_h = state(args.tiles - 1);
  const OneStateRow own =
      place.exists ? one_state_row(args, place.item, place.channel + place.lane, args.last_state)
                   : OneStateRow{};
  fetch_rows(place, args.inputs[0], all_u);
  fetch_rows(place, args.inputs[1], all_delta);
  if (some_gradient) fetch_rows(place, args.inputs[3], all_gradient);
  commit_copies();
  factors.put(B_of);
  wait_copies<0>();
  __syncwarp();

  T* const u = all_u + place.lane * place.length;
  T* const delta = all_delta + place.lane * place.length;
  const G* const gradient = all_gradient + place.lane * place.length;
  const float rate = own.A * kLog2e;
  float k = own.carry;  // the gradient of the state that leaves the tile
  float A_sum = 0, D_sum = 0, bias_sum = 0;
  const auto walk = [&]<bool kWhole>(int tile) {
    const int start = tile * kShortItems;
    const auto inside = [&](int j) { return kWhole || start + j < place.length; };
    const float before = next_h;
    next_h = state(tile - 1);
    float dt[kShortItems], slope[kShortItems], x[kShortItems], gy[kShortItems];
#pragma unroll
    for (int j = 0; j < kShortItems; ++j) {
      dt[j] = inside(j) ? to_float(delta[start + j]) + own.bias : 0;
      x[j] = inside(j) ? to_float(u[start + j]) : 0;
      gy[j] = inside(j) && some_gradient ? to_float(gradient[start + j]) : 0;
      slope[j] = 1;
    }
    if (args.softplus)
#pragma unroll
      for (int j = 0; j < kShortItems; ++j)
        dt[j] = softplus_and_slope<sizeof(T) == 2>(dt[j], slope[j]);
    if constexpr (!kWhole)
#pragma unroll
      for (int j = 0; j < kShortItems; ++j)  // steps that change nothing
        if (!inside(j)) dt[j] = slope[j] = 0;
    float B[kShortPitch], C[kShortPitch], a[kShortItems], h[kShortItems];
    float sums[2 * kShortPitch] = {};
    read_factor(B_of, tile, B);
    read_factor(C_of, tile, C);
#pragma unroll
    for (int j = 0; j < kShortItems; ++j) {
      a[j] = exp2_approx(dt[j] * rate);
      h[j] = fmaf(a[j], j > 0 ? h[j > 0 ? j - 1 : 0] : before, dt[j] * x[j] * B[j]);
    }
#pragma unroll
    for (int j = kShortItems - 1; j >= 0; --j) {
      const float gh = fmaf(C[j], gy[j], k);
      k = a[j] * gh;
      const float turn = k * (j > 0 ? h[j > 0 ? j - 1 : 0] : before);
      const float through_B = gh * B[j];
      A_sum = fmaf(dt[j], turn, A_sum);
      D_sum = fmaf(gy[j], x[j], D_sum);
      sums[j] = gh * (dt[j] * x[j]);
      sums[kShortPitch + j] = gy[j] * h[j];
      slope[j] *= fmaf(x[j], through_B, own.A * turn);
      bias_sum += slope[j];
      if (!inside(j)) continue;
      u[start + j] = from_float<T>(fmaf(own.D, gy[j], dt[j] * through_B));
      delta[start + j] = from_float<T>(slope[j]);
    }
    fold_lanes<1>(sums, place.lane);
    if (factor_sum.to && inside(factor_sum.item))
      store_float(factor_sum.to + start * factor_sum.step, factor_sum.dtype, sums[0]);
  };
#pragma unroll 1
  for (int tile = args.tiles - 1; tile >= 0; --tile)
    for_tile(place, tile, [&]<bool kWhole>() { walk.template operator()<kWhole>(tile); });

  if (place.exists) {
    const int64_t at = place.at(args);
    if (args.initial_gradient) args.initial_gradient[at] = k;
    if (args.A_sums) args.A_sums[at] = A_sum;
    if (args.D_sums) args.D_sums[at] = D_sum;
    if (args.bias_sums) args.bias_sums[at] = bias_sum;
  }
  __syncwarp();
  place.run(args.gu).store(args.gu, all_u);
  place.run(args.gdelta).store(args.gdelta, all_delta);
}

}  // namespace

void launch_short_rows_backward(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    launch("selective_scan backward", short_rows_backward<T, G>, launch_shape(args, plan), stream,
           args);
  });
}

}  // namespace linescan
