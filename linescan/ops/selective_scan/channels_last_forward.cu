// Selective scan on the GPU with several states, for channels side by side in memory and steps in any
// order: forward, and the first kernel of the backward pass, which leaves nothing but the states at the
// start of every tile.
//
//   Equations and shapes as in forward.cu. order [groups, length]: where step t of a group lies.
//
// A lane has a channel and 16 steps in registers, and meets one state after another.
// Numerics:  float for every type. Reference: reference.cpp. Chosen by: gpu_plan.cpp.

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_channels_last.cuh"
#include "linescan/ops/selective_scan/gpu_items.cuh"
#include "linescan/ops/selective_scan/gpu_write.cuh"

namespace linescan {
namespace {

template <typename T, typename G, bool kStatesOnly, CarryPlace kPlace>
__global__ void __launch_bounds__(kChannelsLastMaxWarps* kGpuWarp, 2)
    channels_last_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const GpuPlace<1> place(args);
  const bool exists = place.exists();
  const GpuSequence &u = args.inputs[0], &delta = args.inputs[1];
  float* const factors = reinterpret_cast<float*>(shared_memory() + args.shared.factors);
  const RowCarries<float2, kPlace> carries(args, place);  // state, A log2 e
  if (exists)
    for (int n = place.share; n < args.states; n += args.shares)
      *carries(n) =
          make_float2(args.initial_state ? args.initial_state[place.states_at(args) + n] : 0,
                      args.A[int64_t{place.channel} * args.states + n] * kLog2e);
  const float D = args.D && exists ? args.D[place.channel] : 0;
  const float bias = args.delta_bias && exists ? args.delta_bias[place.channel] : 0;
  [[maybe_unused]] unsigned char* out = nullptr;
  if constexpr (!kStatesOnly)
    out = first_row(args, place, args.out) + place.lane * args.out.channel;

  // The last tile's states start nothing.
  const int tiles = kStatesOnly ? args.tiles - 1 : args.tiles;
  const StepRows<T> u_rows(args, place, u), delta_rows(args, place, delta);
  FactorFeed<T, !kStatesOnly> feed(args, place);
  const auto bring = [&](int tile, const StepPlaces& places) {
    const int steps = GpuTile<1>(args, tile).steps;
    u_rows.fetch(args, place, u, places, tile, steps);
    delta_rows.fetch(args, place, delta, places, tile, steps);
    feed.fetch(args, places, 0);
  };
  StepPlaces next(args, place, 0);
  if (tiles > 0) bring(0, next);
  commit_copies();
  int parity = 0;
  for (int index = 0; index < tiles; ++index) {
    const StepPlaces places = next;
    next = StepPlaces(args, place, index + 1);
    const int steps = GpuTile<1>(args, index).steps, rest = exists ? steps : 0;
    float dt[kGpuItems], du[kGpuItems], y[kGpuItems];
    for (int first = 0; first < args.states; first += kChunkStates, parity ^= 1) {
      float* const own = factors + parity * feed.kFloats;
      feed.unpack(args, places, steps, first, own);
      if (first == 0) wait_copies<0>();
      __syncthreads();
      if (first + kChunkStates < args.states)
        feed.fetch(args, places, first + kChunkStates);
      else if (index + 1 < tiles)
        bring(index + 1, next);
      commit_copies();
      if (first == 0) {
        const T *own_u = u_rows.tile(index, place.lane),
                *own_delta = delta_rows.tile(index, place.lane);
#pragma unroll
        for (int j = 0; j < kGpuItems; ++j) {
          dt[j] = to_float(own_delta[j * kGpuWarp]) + bias, du[j] = to_float(own_u[j * kGpuWarp]);
          if (args.softplus) dt[j] = softplus(dt[j]);
        }
        if (rest < kGpuItems)
#pragma unroll
          for (int j = 0; j < kGpuItems; ++j)  // steps that change nothing
            if (j >= rest) dt[j] = du[j] = 0;
#pragma unroll
        for (int j = 0; j < kGpuItems; ++j) {
          y[j] = place.share == 0 ? D * du[j] : 0;
          du[j] *= dt[j];
        }
      }

      // kTogether of the warp's states at once: their chains hide each other's latency.
      int left = min(args.states - first, kChunkStates) - place.share;
      float2* carry = carries(first + place.share);
      const int64_t step = args.shares * carries.step();
      [[maybe_unused]] float* start = nullptr;
      if (kStatesOnly && index > 0) start = tile_state(args, place, index, first + place.share);
      const float* at = own + place.share * kChunkPitch;
      const auto walk = [&]<int kTogether>() {
        float h[kTogether] = {}, rate[kTogether] = {};
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          if (!exists) continue;
          const float2 now = carry[k * step];
          h[k] = now.x, rate[k] = now.y;
          if constexpr (kStatesOnly)
            if (start != nullptr) start[k * int64_t{args.shares} * args.channels] = h[k];
        }
        for_fours([&](int i) {
          float B[kTogether][4];
          [[maybe_unused]] float C[kTogether][4];
#pragma unroll
          for (int k = 0; k < kTogether; ++k) {
            const float* const from = at + k * args.shares * kChunkPitch + i;
            *reinterpret_cast<float4*>(B[k]) = *reinterpret_cast<const float4*>(from);
            if constexpr (!kStatesOnly)
              *reinterpret_cast<float4*>(C[k]) = *reinterpret_cast<const float4*>(from + kGpuItems);
          }
#pragma unroll
          for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int k = 0; k < kTogether; ++k) {
              h[k] = fmaf(exp2_approx(dt[i + j] * rate[k]), h[k], du[i + j] * B[k][j]);
              if constexpr (!kStatesOnly) y[i + j] = fmaf(C[k][j], h[k], y[i + j]);
            }
        });
#pragma unroll
        for (int k = 0; k < kTogether; ++k)
          if (exists) carry[k * step].x = h[k];
        left -= kTogether * args.shares, carry += kTogether * step;
        at += kTogether * args.shares * kChunkPitch;
        if constexpr (kStatesOnly)
          if (start != nullptr) start += kTogether * int64_t{args.shares} * args.channels;
      };
#pragma unroll 1
      while (left > args.shares) walk.template operator()<2>();
      if (left > 0) walk.template operator()<1>();
    }

    if constexpr (!kStatesOnly) {
      float* const exchange = reinterpret_cast<float*>(shared_memory() + args.shared.exchange) +
                              place.warp * args.exchange;
      if (args.shares > 1) {
        give_items(y, exchange, place.lane);
        __syncthreads();
      }
      for_fours([&](int i) {
        if (!finishes(args, place, i)) return;
        if (args.shares > 1)
          add_four(args, y, i, exchange - place.share * args.exchange, place.lane);
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
          const int64_t at = places(j);
          if (j < rest) *reinterpret_cast<G*>(out + at * args.out.step) = from_float<G>(y[j]);
        }
      });
    }
  }

  if (!exists) return;
  if (kStatesOnly && args.tiles > 1)
    for (int n = place.share; n < args.states; n += args.shares)
      *tile_state(args, place, args.tiles - 1, n) = carries(n)->x;
  if (!kStatesOnly && args.last_state)
    for (int n = place.share; n < args.states; n += args.shares)
      args.last_state[place.states_at(args) + n] = carries(n)->x;
}

}  // namespace

void launch_channels_last_ahead(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, DType::kFloat32, [&]<typename T, typename G>() {
    launch("selective_scan backward",
           plan.shared_carries ? channels_last_forward<T, G, true, CarryPlace::kShared>
                               : channels_last_forward<T, G, true, CarryPlace::kWorkspace>,
           launch_shape(args, plan), stream, args);
  });
}

void launch_channels_last_forward(const SelectiveScanGpuArguments& args,
                                  const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    launch("selective_scan forward",
           plan.shared_carries ? channels_last_forward<T, G, false, CarryPlace::kShared>
                               : channels_last_forward<T, G, false, CarryPlace::kWorkspace>,
           launch_shape(args, plan), stream, args);
  });
}

}  // namespace linescan
