// Selective scan on the GPU with several states, for channels side by side in memory and steps in any
// order: backward. Tiles are walked from the last one to the first; channels_last_forward.cu has left
// the states at their starts.
//
//   Equations and shapes as in backward.cu. order [groups, length]: where step t of a group lies.
//
// Sums over rows (B, C): the lanes of a warp by AddendSums, the block's teams through shared memory,
// blocks and batch by device_code/ordered_sums.cu; sums over states through shared memory where several
// warps share them. All orders are fixed.
// Numerics:  float for every type, but for AddendSums of half types.
// Reference: reference.cpp; derivation in README.md. Chosen by: gpu_plan.cpp.

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_channels_last.cuh"
#include "linescan/ops/selective_scan/gpu_items.cuh"
#include "linescan/ops/selective_scan/gpu_row_steps.cuh"
#include "linescan/ops/selective_scan/gpu_write.cuh"

namespace linescan {
namespace {

// The sums that the teams have left for a chunk's states, [teams, states, kSumPitch], added and written
// out: a thread's elements are those of FactorFeed.
class SumWriter {
 public:
  __device__ __forceinline__ SumWriter(const SelectiveScanGpuArguments& args,
                                       const GpuPlace<1>& place) {
    const auto first = [&](const GpuFactorGradient& f) -> unsigned char* {
      if (f.data == nullptr) return nullptr;
      const int item = f.part != 0 ? place.item - args.first_batch : place.item;
      return f.data + place.part * f.part + item * f.batch + place.group * f.group +
             FactorElements::state() * f.state;
    };
    B_ = first(args.sums[0]), C_ = first(args.sums[1]);
  }
  __device__ __forceinline__ void write(const SelectiveScanGpuArguments& args,
                                        const StepPlaces& places, int steps, int first,
                                        const float* sums) const {
    sums += FactorElements::state() * kSumPitch;
    const bool some = first + FactorElements::state() < args.states;
#pragma unroll 1
    for (int k = 0; FactorElements::slot(k) < 2 * kGpuItems; ++k) {
      const int slot = FactorElements::slot(k), step = slot % kGpuItems;
      const int64_t at = places(step);
      const GpuFactorGradient& f = args.sums[slot / kGpuItems];
      unsigned char* const to = slot < kGpuItems ? B_ : C_;
      if (!some || step >= steps || to == nullptr) continue;
      float total = sums[slot];
#pragma unroll 2
      for (int team = 1; team < args.teams; ++team)
        total += sums[team * kChunkStates * kSumPitch + slot];
      store_float(to + first * f.state + at * f.step, f.dtype, total);
    }
  }

 private:
  unsigned char *B_, *C_;
};

template <typename T, typename G, CarryPlace kPlace>
__global__ void __launch_bounds__(kChannelsLastMaxWarps* kGpuWarp, 2)
    channels_last_backward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const GpuPlace<1> place(args);
  const bool exists = place.exists();
  const GpuSequence &u = args.inputs[0], &delta = args.inputs[1], &gradient = args.inputs[3];
  float* const factors = reinterpret_cast<float*>(shared_memory() + args.shared.factors);
  float* const sums = reinterpret_cast<float*>(shared_memory() + args.shared.sums);
  float* const exchange =
      reinterpret_cast<float*>(shared_memory() + args.shared.exchange) + place.warp * args.exchange;
  // The lane's gradient of out at the steps of a tile: registers are better used for the rest.
  float* const own_gy = reinterpret_cast<float*>(shared_memory() + args.shared.items) +
                        place.warp * kGpuExchange + place.lane * kGpuSegmentPitch;
  float* const team_exchange = exchange - place.share * args.exchange;
  float* const own_sums = sums + place.team * kChunkStates * kSumPitch +
                          AddendSums<T>::of_C(place.lane) * kGpuItems +
                          AddendSums<T>::step(place.lane);
  // Gradient of the state, sum for A, A, state at the tile's start.
  const RowCarries<float4, kPlace> carries(args, place);
  if (exists)
    for (int n = place.share; n < args.states; n += args.shares) {
      const float* const start = args.tiles > 1 ? tile_state(args, place, args.tiles - 1, n)
                                 : args.initial_state
                                     ? args.initial_state + place.states_at(args) + n
                                     : nullptr;
      *carries(n) =
          make_float4(args.last_state ? args.last_state[place.states_at(args) + n] : 0, 0,
                      args.A[int64_t{place.channel} * args.states + n], start ? *start : 0);
    }
  const float D = args.D && exists ? args.D[place.channel] : 0;
  const float bias = args.delta_bias && exists ? args.delta_bias[place.channel] : 0;
  const auto lane_of = [&](const GpuSequence& q) {
    unsigned char* const first = first_row(args, place, q);
    return first == nullptr ? nullptr : first + place.lane * q.channel;
  };
  unsigned char *const gu = lane_of(args.gu), *const gdelta = lane_of(args.gdelta);

  const StepRows<T> u_rows(args, place, u), delta_rows(args, place, delta);
  const StepRows<G> gradient_rows(args, place, gradient);
  const SumWriter writer(args, place);
  FactorFeed<T, true> feed(args, place);
  const auto bring = [&](int tile, const StepPlaces& places) {
    const int steps = GpuTile<1>(args, tile).steps;
    u_rows.fetch(args, place, u, places, tile, steps);
    delta_rows.fetch(args, place, delta, places, tile, steps);
    gradient_rows.fetch(args, place, gradient, places, tile, steps);
  };
  StepPlaces next(args, place, args.tiles - 1);
  if (args.tiles > 0) {
    bring(args.tiles - 1, next);
    feed.fetch(args, next, 0);
  }
  commit_copies();
  int parity = 0;
  float D_sum = 0, bias_sum = 0;
  for (int index = args.tiles - 1; index >= 0; --index) {
    const StepPlaces places = next;
    if (index > 0) next = StepPlaces(args, place, index - 1);
    const int steps = GpuTile<1>(args, index).steps, rest = exists ? steps : 0;
    const T* const own_u = u_rows.tile(index, place.lane);
    const T* const own_delta = delta_rows.tile(index, place.lane);
    RowSteps row;
    float(&dt)[kGpuItems] = row.dt, (&du)[kGpuItems] = row.du;
    for (int first = 0; first < args.states; first += kChunkStates, parity ^= 1) {
      float* const own = factors + parity * feed.kFloats;
      feed.unpack(args, places, steps, first, own);
      commit_copies();  // of the states at the tile's start
      if (first == 0) wait_copies<0>();
      __syncthreads();
      const bool last_chunk = first + kChunkStates >= args.states;
      if (last_chunk && index > 0) bring(index - 1, next);
      commit_copies();
      if (first == 0) {
        const G* const from_gy = gradient_rows.tile(index, place.lane);
        float gy[kGpuItems];
#pragma unroll
        for (int j = 0; j < kGpuItems; ++j) {
          dt[j] = to_float(own_delta[j * kGpuWarp]) + bias, du[j] = to_float(own_u[j * kGpuWarp]);
          gy[j] = gradient.data ? to_float(from_gy[j * kGpuWarp]) : 0;
          if (args.softplus) dt[j] = softplus(dt[j]);
        }
        if (rest < kGpuItems)
#pragma unroll
          for (int j = 0; j < kGpuItems; ++j)  // steps that change nothing
            if (j >= rest) dt[j] = du[j] = gy[j] = 0;
#pragma unroll
        for (int j = 0; j < kGpuItems; ++j) du[j] *= dt[j];
        for_fours([&](int i) {
          *reinterpret_cast<float4*>(own_gy + i) =
              make_float4(gy[i], gy[i + 1], gy[i + 2], gy[i + 3]);
        });
      }

      // What a state needs before its steps can begin, is loaded while the state before it is at work.
      int left = min(args.states - first, kChunkStates) - place.share;
      float4* carry = carries(first + place.share);
      const int64_t carry_step = args.shares * carries.step();
      // Of the tile that comes next.
      const float* start = nullptr;
      int64_t start_step = args.shares;
      if (index > 1) {
        start = tile_state(args, place, index - 1, first + place.share);
        start_step *= args.channels;
      } else if (args.initial_state) {
        start = args.initial_state + place.states_at(args) + first + place.share;
      }
      const float* at = own + place.share * kChunkPitch;
      float* sum_to = own_sums + place.share * kSumPitch;
      float4 ahead = make_float4(0, 0, 0, 0);
      if (exists && left > 0) ahead = *carry;
#pragma unroll 1
      for (; left > 0; left -= args.shares) {
        const float A = ahead.z, A_sum_behind = ahead.y, before = ahead.w;
        float k = ahead.x;
        float4* const own_carry = carry;
        carry += carry_step;
        if (exists && left > args.shares) ahead = *carry;
        // Its place is free: the state at the start of the next tile.
        float next_start = 0;
        if (exists && start != nullptr) {
          if (carries_are_shared<kPlace>(args))
            copy_async<4>(&own_carry->w, start);
          else
            next_start = *start;
          start += start_step;
        }
        float A_sum;
        *sum_to = row.walk<T>(A, before, k, A_sum, at, own_gy, place.lane);
        if (exists) {
          *reinterpret_cast<float2*>(own_carry) = make_float2(k, A_sum_behind + A_sum);
          if (!carries_are_shared<kPlace>(args) || start == nullptr) own_carry->w = next_start;
        }
        at += args.shares * kChunkPitch, sum_to += args.shares * kSumPitch;
      }
      // Only here, where registers are free for what it brings.
      if (!last_chunk)
        feed.fetch(args, places, first + kChunkStates);
      else if (index > 0)
        feed.fetch(args, next, 0);
      __syncthreads();
      writer.write(args, places, steps, first, sums);
    }

    if (args.shares > 1) {
      give_items(row.through_B, exchange, place.lane);
      give_items(row.through_a, exchange + kGpuExchange, place.lane);
      __syncthreads();
    }
    unsigned char *const to_u = in_register(gu), *const to_delta = in_register(gdelta);
    const float own_bias = in_register(bias), own_D = in_register(D);
    const int own_rest = in_register(rest);
    const StepPlaces own_places = places.held();
    float tile_D = 0, tile_bias = 0;
    for_fours([&](int i) {
      if (!finishes(args, place, i)) return;
      if (args.shares > 1) {
        add_four(args, row.through_B, i, team_exchange, place.lane);
        add_four(args, row.through_a, i, team_exchange + kGpuExchange, place.lane);
      }
      const float4 four_gy = *reinterpret_cast<const float4*>(own_gy + i);
      const float gy[4] = {four_gy.x, four_gy.y, four_gy.z, four_gy.w};
      uint32_t at[4];
      float x[4], slope[4] = {1, 1, 1, 1};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        at[j] = own_places(i + j);
        x[j] = i + j < own_rest ? to_float(own_u[(i + j) * kGpuWarp]) : 0;
      }
      if (args.softplus)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          slope[j] = softplus_slope(to_float(own_delta[(i + j) * kGpuWarp]) + own_bias);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        slope[j] = i + j < own_rest
                       ? slope[j] * fmaf(x[j], row.through_B[i + j], row.through_a[i + j])
                       : 0;
        tile_D = fmaf(gy[j], x[j], tile_D);
        tile_bias += slope[j];
        x[j] = fmaf(own_D, gy[j], row.dt[i + j] * row.through_B[i + j]);
      }
      const auto store = [&](unsigned char* to, const GpuSequence& q, const float(&values)[4]) {
        if (to == nullptr) return;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (i + j < own_rest)
            *reinterpret_cast<T*>(to + int64_t{at[j]} * q.step) = from_float<T>(values[j]);
      };
      store(to_u, args.gu, x);
      store(to_delta, args.gdelta, slope);
    });
    D_sum += tile_D, bias_sum += tile_bias;
  }

  if (exists)
    for (int n = place.share; n < args.states; n += args.shares) {
      const int64_t at = place.states_at(args) + n;
      const float4 last = *carries(n);
      if (args.initial_gradient) args.initial_gradient[at] = last.x;
      if (args.A_sums) args.A_sums[at] = last.y;
    }
  if (args.shares > 1) {
    __syncthreads();
    exchange[place.lane] = D_sum, exchange[kGpuWarp + place.lane] = bias_sum;
    __syncthreads();
    for (int share = 1; share < args.shares && place.share == 0; ++share) {
      D_sum += exchange[share * args.exchange + place.lane];
      bias_sum += exchange[share * args.exchange + kGpuWarp + place.lane];
    }
  }
  if (place.share > 0 || !exists) return;
  const int64_t row = int64_t{place.item} * args.channels + place.channel;
  if (args.D_sums) args.D_sums[row] = D_sum;
  if (args.bias_sums) args.bias_sums[row] = bias_sum;
}

}  // namespace

void launch_channels_last_backward(const SelectiveScanGpuArguments& args,
                                   const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    launch("selective_scan backward",
           plan.shared_carries ? channels_last_backward<T, G, CarryPlace::kShared>
                               : channels_last_backward<T, G, CarryPlace::kWorkspace>,
           launch_shape(args, plan), stream, args);
  });
}

}  // namespace linescan
