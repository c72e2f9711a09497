// Selective scan on the GPU with several states, for long sequences that lie along the length and too few rows to fill a
// device otherwise: backward, from states at the starts of tiles that the forward pass or a first kernel has left.
//
//   Equations and shapes as in backward.cu.
//
// Walkers and pairs as in walkers_forward.cu, tiles from the last one to the first: a walker's lane meets its states one
// after the other, there and back. Sums over rows (B, C): over the lanes of a walker (AddendSums), then over blocks by
// device_code/ordered_sums.cu, which sums A, D and delta_bias over the batch; sums over states by the pairs, through shared memory. All orders are fixed.
// Numerics:  float for every type but what AddendSums cuts; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_factors.cuh"
#include "linescan/ops/selective_scan/gpu_row_steps.cuh"
#include "linescan/ops/selective_scan/gpu_walkers.cuh"
#include "linescan/ops/selective_scan/gpu_write.cuh"

namespace linescan {
namespace {

using Places = WalkersPlaces<kWalkersBackward, 3,
                             2>;  // dt, dt u, the gradient of out; RowSteps' two sums over states

template <typename T>
__device__ __forceinline__ void walk(const SelectiveScanGpuArguments& args,
                                     const GpuPlace<1>& place, const Places& places) {
  const int first = place.warp * Places::kStates;
  const int own_states = place.exists() ? min(Places::kStates, args.states - first) : 0;
  const int64_t states_at = place.states_at(args) + first;
  float A[Places::kStates], gradient[Places::kStates], A_sums[Places::kStates] = {};
#pragma unroll
  for (int k = 0; k < Places::kStates; ++k) {
    const bool some = k < own_states;
    // The sums are there to be waited for here, as in PairPlace.
    A[k] = (some ? args.A[int64_t{place.channel} * args.states + first + k] : 0) + 0.f;
    gradient[k] = (some && args.last_state ? args.last_state[states_at + k] : 0) + 0.f;
  }
  // Where this lane's sums of the first state go (AddendSums): of the last tile, then of those in front.
  const GpuFactorGradient& sums = args.sums[AddendSums<T>::of_C(place.lane)];
  const int sums_step = AddendSums<T>::step(place.lane);
  const int64_t last = int64_t{args.tiles - 1} * kGpuItems + sums_step;
  unsigned char* sums_to =
      sums.data == nullptr
          ? nullptr
          : sums.data + place.part * sums.part +
                (sums.part != 0 ? place.item - args.first_batch : place.item) * sums.batch +
                place.group * sums.group + first * sums.state + last * sums.step;
  const bool float_sums = sums.dtype == DType::kFloat32;
  bool sums_wanted = sums_to != nullptr && last < args.length;

  const float* kept = args.tiles > 1 ? tile_state(args, place, args.tiles - 1, first) : nullptr;
  const int64_t tile_states = int64_t{args.state_items} * args.states * args.channels;
  float next_h[Places::kStates];
  const auto bring = [&](int tile) {
    const float* from = args.initial_state ? args.initial_state + states_at : nullptr;
    int64_t step = 1;
    if (tile > 0) from = kept, step = args.channels, kept -= tile_states;
#pragma unroll
    for (int k = 0; k < Places::kStates; ++k)
      next_h[k] = k < own_states && from ? from[k * step] : 0;
  };
  bring(args.tiles - 1);
#pragma unroll 1
  for (int n = 0; n < args.tiles; ++n) {
    const int at = places.of(n);
    const float* const factors = places.factors(at) + first * kWalkersPitch;
    const float* const row_steps = places.steps(at, 0) + place.lane * kGpuSegmentPitch;
    float h[Places::kStates];
#pragma unroll
    for (int k = 0; k < Places::kStates; ++k) h[k] = next_h[k];
    if (n + 1 < args.tiles) bring(args.tiles - 2 - n);
    places.await_prepared(at);
    RowSteps row;
    read_steps(row_steps, row.dt), read_steps(row_steps + kRowsFloats, row.du);
#pragma unroll
    for (int k = 0; k < Places::kStates; ++k) {
      if (first + k >= args.states) break;  // not even walked: an infinite dt would make NaN of it
      float A_sum;
      const float sum = row.walk<T>(A[k], h[k], gradient[k], A_sum, factors + k * kWalkersPitch,
                                    row_steps + 2 * kRowsFloats, place.lane);
      A_sums[k] += A_sum;
      if (!sums_wanted) continue;
      unsigned char* const to = sums_to + k * sums.state;
      if (float_sums)
        *reinterpret_cast<float*>(to) = sum;
      else
        store_float(to, sums.dtype, sum);
    }
    give_items(row.through_B, places.share(at, place.warp, 0), place.lane);
    give_items(row.through_a, places.share(at, place.warp, 1), place.lane);
    places.walked(at);
    if (sums_to != nullptr) sums_to -= kGpuItems * sums.step, sums_wanted = true;
  }
#pragma unroll
  for (int k = 0; k < Places::kStates; ++k) {
    if (k >= own_states) continue;
    if (args.initial_gradient) args.initial_gradient[states_at + k] = gradient[k];
    if (args.A_sums) args.A_sums[states_at + k] = A_sums[k];
  }
}

template <typename T, typename G>
__device__ __forceinline__ void help(const SelectiveScanGpuArguments& args,
                                     const GpuPlace<1>& place, const Places& places) {
  const PairPlace own(args, place, places.walkers());
  const int pair = own.pair, pairs = places.count();
  const float D = own.D, bias = own.bias;
  const int last = args.tiles - 1 - pair;  // the pair's first tile
  auto u = own.steps<T>(args.inputs[0], place.item, last);
  auto delta = own.steps<T>(args.inputs[1], place.item, last);
  auto gradient = own.steps<G>(args.inputs[3], place.item, last);
  auto walked_u = own.steps<T>(args.inputs[0], place.item, last + pairs);
  auto walked_delta = own.steps<T>(args.inputs[1], place.item, last + pairs);
  auto gu = own.steps<T>(args.gu, place.item, last + pairs);
  auto gdelta = own.steps<T>(args.gdelta, place.item, last + pairs);
  PairFactors<T, Places> factors(args, place, own, places, last);
  const auto move = [&](auto& sequence, const GpuSequence& q) {
    sequence.move(int64_t{-pairs} * kGpuItems * q.step);
  };
  GpuRawItems<T, kPairSteps> next_u, next_delta;
  GpuRawItems<G, kPairSteps> next_gradient;
  const auto bring = [&](int tile) {
    const int count = tile >= 0 ? own.count(tile) : 0;
    next_u = u.load(count), next_delta = delta.load(count), next_gradient = gradient.load(count);
    factors.load(count);
    move(u, args.inputs[0]), move(delta, args.inputs[1]), move(gradient, args.inputs[3]);
    factors.move(-pairs * kGpuItems);
  };
  bring(last);
  float D_sum = 0, bias_sum = 0;
#pragma unroll 1
  for (int tile = last; tile > -1 - pairs; tile -= pairs) {
    if (const int walked = tile + pairs; walked < args.tiles) {
      const int count = own.count(walked);
      const auto input = walked_u.load(count), x = walked_delta.load(count);
      places.await_walked(pair);
      float from_B[kPairSteps] = {}, from_a[kPairSteps] = {};
      places.add_shares(pair, 0, own.own(), from_B), places.add_shares(pair, 1, own.own(), from_a);
      float to_u[kPairSteps], to_delta[kPairSteps];
      const float *const dt = places.steps(pair, 0) + own.own(), *const gy = dt + 2 * kRowsFloats;
#pragma unroll
      for (int j = 0; j < kPairSteps; ++j) {
        to_u[j] = fmaf(D, gy[j], dt[j] * from_B[j]);
        to_delta[j] = fmaf(input[j], from_B[j], from_a[j]);
        if (args.softplus) to_delta[j] *= softplus_slope(x[j] + bias);
        if (j >= count) continue;
        D_sum = fmaf(gy[j], input[j], D_sum);
        bias_sum += to_delta[j];
      }
      gu.store(count, to_u), gdelta.store(count, to_delta);
    }
    move(walked_u, args.inputs[0]), move(walked_delta, args.inputs[1]);
    move(gu, args.gu), move(gdelta, args.gdelta);
    if (tile < 0) continue;
    float dt[kPairSteps], du[kPairSteps], gy[kPairSteps];
    steps_of_delta<T>(args, bias, next_delta, own.count(tile), dt);
#pragma unroll
    for (int j = 0; j < kPairSteps; ++j) du[j] = dt[j] * next_u[j], gy[j] = next_gradient[j];
    give_own(dt, places.steps(pair, 0) + own.own());
    give_own(du, places.steps(pair, 1) + own.own());
    give_own(gy, places.steps(pair, 2) + own.own());
    factors.give(places.factors(pair));
    places.prepared(pair);
    if (tile >= pairs) bring(tile - pairs);
  }

  // The row's sums of D and delta_bias: of all pairs, two threads each.
  places.meet_pairs();
  float2* const sums = reinterpret_cast<float2*>(places.steps(0, 0)) + own.row;
  sums[(2 * pair + own.thread % 2) * kGpuWarp] = make_float2(D_sum, bias_sum);
  places.meet_pairs();
  if (pair > 0 || own.thread % 2 > 0 || !own.exists) return;
  for (int i = 1; i < 2 * pairs; ++i)
    D_sum += sums[i * kGpuWarp].x, bias_sum += sums[i * kGpuWarp].y;
  const int64_t row = int64_t{place.item} * args.channels + own.channel;
  if (args.D_sums) args.D_sums[row] = D_sum;
  if (args.bias_sums) args.bias_sums[row] = bias_sum;
}

template <typename T, typename G>
__global__ void __launch_bounds__((kWalkersMost + 2 * kWalkersBackward.places) * kGpuWarp, 1)
    walkers_backward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const GpuPlace<1> place(args);
  const Places places(args);
  if (place.warp < places.walkers())
    walk<T>(args, place, places);
  else
    help<T, G>(args, place, places);
}

}  // namespace

void launch_walkers_backward(const SelectiveScanGpuArguments& args,
                             const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    launch("selective_scan backward", walkers_backward<T, G>, launch_shape(args, plan), stream,
           args);
  });
}

}  // namespace linescan
