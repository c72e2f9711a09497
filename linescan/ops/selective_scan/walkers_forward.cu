// Selective scan on the GPU with several states, for long sequences that lie along the length and too few rows to fill a
// device otherwise: forward, where wanted with the states at the start of the backward pass's tiles.
//
//   Equations and shapes as in forward.cu.
//
// A block has 32 rows. Walkers are warps that do nothing but walk: a lane has a row and four of its states, in registers
// from the first step to the last. Pairs of other warps take turns with tiles of 16 steps: each brings and converts what
// a tile needs, dt and dt u and B and C, to its place in shared memory, and finishes out from what the walkers left
// there. So nothing is prepared twice, and a walker waits for neither memory nor sums. A walker takes the first steps of a
// tile from shared memory while it walks the last ones of the tile before; behind the last tile pairs pass on an empty one.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_walkers.cuh"

namespace linescan {
namespace {

using Places = WalkersPlaces<kWalkersForward, 2, 1>;  // dt and dt u; a share of y

// What a walker's lane reads for four steps.
struct Four {
  Pack<float, 4> dt, du, B[Places::kStates], C[Places::kStates];
};

__device__ __forceinline__ void walk(const SelectiveScanGpuArguments& args,
                                     const GpuPlace<1>& place, const Places& places) {
  const int first = place.warp * Places::kStates;
  const bool exists = place.exists();
  float h[Places::kStates], rate[Places::kStates];
#pragma unroll
  for (int k = 0; k < Places::kStates; ++k) {
    const int n = first + k;
    const bool some = exists && n < args.states;
    h[k] = some && args.initial_state ? args.initial_state[place.states_at(args) + n] : 0;
    rate[k] = some ? args.A[int64_t{place.channel} * args.states + n] * kLog2e : 0;
  }
  const int own_states = exists ? min(Places::kStates, args.states - first) : 0;
  const int kept_tiles = args.state_steps / kGpuItems;
  int kept = 0, next_kept = args.tile_states != nullptr ? kept_tiles : args.tiles;
  // Steps i to i + 3 of the tile in a place: brought while the four before are walked.
  const auto bring = [&](int at, int i) {
    const auto four = [](const float* from) {
      return *reinterpret_cast<const Pack<float, 4>*>(from);
    };
    Four steps;
    steps.dt = four(places.steps(at, 0) + place.lane * kGpuSegmentPitch + i);
    steps.du = four(places.steps(at, 1) + place.lane * kGpuSegmentPitch + i);
    const float* const factors = places.factors(at) + first * kWalkersPitch + i;
#pragma unroll
    for (int k = 0; k < Places::kStates; ++k) {
      steps.B[k] = four(factors + k * kWalkersPitch);
      steps.C[k] = four(factors + k * kWalkersPitch + kGpuItems);
    }
    return steps;
  };
  Four next;
  places.await_prepared(0);
  next = bring(0, 0);
#pragma unroll 1
  for (int tile = 0; tile < args.tiles; ++tile) {
    if (tile == next_kept) {
      next_kept += kept_tiles, ++kept;
      if (own_states > 0) {
        float* const to = tile_state(args, place, kept, first);
#pragma unroll
        for (int k = 0; k < Places::kStates; ++k)
          if (k < own_states) to[k * int64_t{args.channels}] = h[k];
      }
    }
    const int at = places.of(tile), behind = places.of(tile + 1);
    float* const y_row = places.share(at, place.warp, 0) + place.lane * kGpuSegmentPitch;
    for_fours([&](int i) {
      const Four now = next;
      if (i + 4 < kGpuItems) {
        next = bring(at, i + 4);
      } else {
        places.await_prepared(behind);
        next = bring(behind, 0);
      }
      float a[Places::kStates][4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int k = 0; k < Places::kStates; ++k) a[k][j] = exp2_approx(now.dt.values[j] * rate[k]);
      Pack<float, 4> y = {};
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int k = 0; k < Places::kStates; ++k) {
          h[k] = fmaf(a[k][j], h[k], now.du.values[j] * now.B[k].values[j]);
          y.values[j] = fmaf(now.C[k].values[j], h[k], y.values[j]);
        }
      *reinterpret_cast<Pack<float, 4>*>(y_row + i) = y;
    });
    places.walked(at);
  }
  if (args.last_state)
#pragma unroll
    for (int k = 0; k < Places::kStates; ++k)
      if (k < own_states) args.last_state[place.states_at(args) + first + k] = h[k];
}

template <typename T, typename G>
__device__ __forceinline__ void help(const SelectiveScanGpuArguments& args,
                                     const GpuPlace<1>& place, const Places& places) {
  const PairPlace own(args, place, places.walkers());
  const int pair = own.pair, pairs = places.count();
  const float D = own.D, bias = own.bias;
  auto u = own.steps<T>(args.inputs[0], place.item, pair);
  auto delta = own.steps<T>(args.inputs[1], place.item, pair);
  auto walked_u = own.steps<T>(args.inputs[0], place.item, pair - pairs);
  auto walked_z = own.steps<T>(args.inputs[2], place.item, pair - pairs);
  auto out = own.steps<G>(args.out, place.item, pair - pairs);
  PairFactors<T, Places> factors(args, place, own, places, pair);
  const auto move = [&](auto& sequence, const GpuSequence& q) {
    sequence.move(int64_t{pairs} * kGpuItems * q.step);
  };
  GpuRawItems<T, kPairSteps> next_u, next_delta;
  const auto bring = [&](int tile) {
    const int count = own.count(tile);
    next_u = u.load(count), next_delta = delta.load(count), factors.load(count);
    move(u, args.inputs[0]), move(delta, args.inputs[1]), factors.move(pairs * kGpuItems);
  };
  bring(pair);
#pragma unroll 1
  for (int tile = pair; tile < args.tiles + pairs; tile += pairs) {
    const int walked = tile - pairs;
    if (walked >= 0) {
      const int count = own.count(walked);
      GpuRawItems<T, kPairSteps> of_u, z;
      if (D != 0) of_u = walked_u.load(count);
      if (args.inputs[2].data) z = walked_z.load(count);
      places.await_walked(pair);
      float y[kPairSteps] = {};
      places.add_shares(pair, 0, own.own(), y);
      if (D != 0)
#pragma unroll
        for (int j = 0; j < kPairSteps; ++j) y[j] = fmaf(D, of_u[j], y[j]);
      if (args.inputs[2].data)
#pragma unroll
        for (int j = 0; j < kPairSteps; ++j) y[j] *= z[j] * sigmoid(z[j]);
      out.store(count, y);
    }
    move(walked_u, args.inputs[0]), move(walked_z, args.inputs[2]), move(out, args.out);
    if (tile == args.tiles) places.prepared(pair);
    if (tile >= args.tiles) continue;
    float dt[kPairSteps], du[kPairSteps];
    steps_of_delta<T>(args, bias, next_delta, own.count(tile), dt);
#pragma unroll
    for (int j = 0; j < kPairSteps; ++j) du[j] = dt[j] * next_u[j];
    give_own(dt, places.steps(pair, 0) + own.own());
    give_own(du, places.steps(pair, 1) + own.own());
    factors.give(places.factors(pair));
    places.prepared(pair);
    if (tile + pairs < args.tiles) bring(tile + pairs);
  }
}

template <typename T, typename G>
__global__ void __launch_bounds__((kWalkersMost + 2 * kWalkersForward.places) * kGpuWarp, 1)
    walkers_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const GpuPlace<1> place(args);
  const Places places(args);
  if (place.warp < places.walkers())
    walk(args, place, places);
  else
    help<T, G>(args, place, places);
}

}  // namespace

void launch_walkers_forward(const SelectiveScanGpuArguments& args, const SelectiveScanGpuPlan& plan,
                            DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    launch("selective_scan forward", walkers_forward<T, G>, launch_shape(args, plan), stream, args);
  });
}

}  // namespace linescan
