// Selective scan on the GPU with several states, for sequences that lie along the length, forward, where wanted with
// the states at the start of the backward pass's tiles; and the first kernel of the backward pass, which leaves nothing
// but those.
//
//   Equations and shapes as in forward.cu.
//
// Lanes that share a row divide its states: each prepares and finishes some of a tile's 16 steps for all of
// them, and walks all 16 with its own states. So no step is walked twice, the chains of two states hide each
// other's latency, and no warp waits for another.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_factor_batch.cuh"
#include "linescan/ops/selective_scan/gpu_state_lanes.cuh"

namespace linescan {
namespace {

template <typename T, typename G, int kLanes, bool kStatesOnly>
__global__ void __launch_bounds__(kStateLanesMaxWarps* kGpuWarp,
                                  kStateLanesWarps / kStateLanesMaxWarps)
    state_lanes_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  using Memory = StateLanesMemory<kLanes>;
  using Factors = FactorBatch<T, !kStatesOnly, kStatesOnly ? 1 : 2, kChunkPitch>;
  static_assert(Factors::kStates == kChunkStates);
  constexpr int kOwn = kGpuItems / kLanes;  // steps that a lane prepares and finishes
  const GpuPlace<kLanes> place(args);
  const bool exists = place.exists();
  const Memory memory(args, place);
  const int slots = Memory::slots(args);
  for (int slot = 0; slot < slots; ++slot) {
    const int n = slot * kLanes + place.segment;
    float2 carry = make_float2(0, 0);  // state, A log2 e
    if (exists && n < args.states) {
      const int64_t at = int64_t{place.channel} * args.states + n;
      carry.y = args.A[at] * kLog2e;
      if (args.initial_state) carry.x = args.initial_state[place.states_at(args) + n];
    }
    memory.carries[slot * kGpuWarp] = carry;
  }
  const float D = args.D && exists ? args.D[place.channel] : 0;
  const float bias = args.delta_bias && exists ? args.delta_bias[place.channel] : 0;

  // The last tile's states start nothing.
  const int kept_tiles = args.state_steps / kGpuItems;
  const int tiles = kStatesOnly ? (args.tiles - 1) * kept_tiles : args.tiles;
  const auto own_steps = [&]<typename Element>(const GpuSequence& q) {
    const bool some = q.data != nullptr && exists;
    return OwnSteps<Element, kOwn>(q, !some ? nullptr
                                            : q.data + place.item * q.batch +
                                                  place.channel * q.channel +
                                                  place.segment * kOwn * q.step);
  };
  auto u = own_steps.template operator()<T>(args.inputs[0]);
  auto delta = own_steps.template operator()<T>(args.inputs[1]);
  auto out = own_steps.template operator()<G>(args.out);
  const auto bring = [&](auto& sequence, const GpuSequence& q, int count) {
    const auto items = sequence.load(count);
    sequence.move(kGpuItems * q.step);
    return items;
  };
  const int whole_tiles = static_cast<int>(args.length / kGpuItems);
  // Of the lane's own steps of a tile, how many exist.
  const auto count_of = [&](int tile) {
    if (tile < whole_tiles) return kOwn;
    const int rest = tile == whole_tiles ? static_cast<int>(args.length % kGpuItems) : 0;
    return min(max(rest - place.segment * kOwn, 0), kOwn);
  };
  int count = count_of(0);
  auto next_u = bring(u, args.inputs[0], count), next_delta = bring(delta, args.inputs[1], count);
  Factors batch(args, place, 0, 0, 1);
  int parity = 0;
  int kept = 0, next_kept = args.tile_states != nullptr && exists ? kept_tiles : tiles;
  for (int tile = 0; tile < tiles; ++tile) {
    float* start = nullptr;
    if (tile == next_kept) {
      start = tile_state(args, place, ++kept, place.segment);
      next_kept += kept_tiles;
      if constexpr (!kStatesOnly) {  // at once: the loop over steps has no registers for it
        const float2* carry = memory.carries;
#pragma unroll 1
        for (int n = place.segment; n < args.states; n += kLanes) {
          *start = carry->x;
          carry += kGpuWarp, start += int64_t{kLanes} * args.channels;
        }
      }
    }
    const auto now_u = next_u;
    {
      float dt[kOwn], du[kOwn];
#pragma unroll
      for (int j = 0; j < kOwn; ++j) {
        dt[j] = next_delta[j] + bias;
        if (args.softplus) dt[j] = softplus(dt[j]);
      }
      if (count < kOwn)
#pragma unroll
        for (int j = 0; j < kOwn; ++j)  // steps that change nothing
          if (j >= count) dt[j] = 0;
#pragma unroll
      for (int j = 0; j < kOwn; ++j) du[j] = dt[j] * now_u[j];
      give_own(dt, memory.steps(0)), give_own(du, memory.steps(1));
    }
    batch.unpack(memory.factors(parity), place.lane);
    [[maybe_unused]] const int own_count = count;
    count = count_of(tile + 1);
    // Begun last: whoever waits for older loads would wait for these too.
    next_u = bring(u, args.inputs[0], count), next_delta = bring(delta, args.inputs[1], count);

    float dt[kGpuItems], du[kGpuItems], y[kGpuItems] = {};
    float2* carry = memory.carries;
    for (int first = 0; first < args.states; first += kChunkStates) {
      const bool more = first + kChunkStates < args.states;
      if (more || tile + 1 < tiles)
        batch = Factors(args, place, more ? tile : tile + 1, more ? first + kChunkStates : 0, 1);
      __syncwarp();
      if (first == 0) read_steps(memory.row_steps(0), dt), read_steps(memory.row_steps(1), du);
      const float* at = memory.factors(parity) + place.segment * kChunkPitch;
      const int end = min(args.states, first + kChunkStates);
#pragma unroll 1
      for (int n = first + place.segment; n - place.segment < end; n += 2 * kLanes) {
        float h[2], rate[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float2 now = carry[k * kGpuWarp];
          h[k] = now.x, rate[k] = now.y;
          if constexpr (kStatesOnly)
            if (start != nullptr && n + k * kLanes < args.states)
              start[k * int64_t{kLanes} * args.channels] = h[k];
        }
        for_fours([&](int i) {
          float B[2][4];
          [[maybe_unused]] float C[2][4];
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const float* const from = at + k * kLanes * kChunkPitch + i;
            *reinterpret_cast<float4*>(B[k]) = *reinterpret_cast<const float4*>(from);
            if constexpr (!kStatesOnly)
              *reinterpret_cast<float4*>(C[k]) = *reinterpret_cast<const float4*>(from + kGpuItems);
          }
#pragma unroll
          for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              h[k] = fmaf(exp2_approx(dt[i + j] * rate[k]), h[k], du[i + j] * B[k][j]);
              if constexpr (!kStatesOnly) y[i + j] = fmaf(C[k][j], h[k], y[i + j]);
            }
        });
#pragma unroll
        for (int k = 0; k < 2; ++k) carry[k * kGpuWarp].x = h[k];
        carry += 2 * kGpuWarp, at += 2 * kLanes * kChunkPitch;
        if constexpr (kStatesOnly)
          if (start != nullptr) start += 2 * int64_t{kLanes} * args.channels;
      }
      parity ^= 1;
      if (more) batch.unpack(memory.factors(parity), place.lane);
    }

    if constexpr (!kStatesOnly) {
      float sum[kOwn];
      memory.sum_over_lanes(y, sum);
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sum[j] = fmaf(D, now_u[j], sum[j]);
      if (args.inputs[2].data) {
        auto gate = own_steps.template operator()<T>(args.inputs[2]);
        gate.move(tile * (kGpuItems * args.inputs[2].step));
        const auto z = gate.load(own_count);
#pragma unroll
        for (int j = 0; j < kOwn; ++j) sum[j] *= z[j] * sigmoid(z[j]);
      }
      out.store(own_count, sum);
      out.move(kGpuItems * args.out.step);
    } else {
      __syncwarp();  // all lanes have read the steps that are replaced next
    }
  }

  if (!exists) return;
  for (int slot = 0; slot < slots; ++slot) {
    const int n = slot * kLanes + place.segment;
    const float h = memory.carries[slot * kGpuWarp].x;
    if (n >= args.states) continue;
    if (kStatesOnly && args.tiles > 1) *tile_state(args, place, args.tiles - 1, n) = h;
    if (!kStatesOnly && args.last_state) args.last_state[place.states_at(args) + n] = h;
  }
}

template <bool kStatesOnly>
void launch_state_lanes(const SelectiveScanGpuArguments& args, const SelectiveScanGpuPlan& plan,
                        DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename Out>() {
    using G = std::conditional_t<kStatesOnly, float, Out>;
    const auto run = [&](auto* kernel) {
      launch(kStatesOnly ? "selective_scan backward" : "selective_scan forward", kernel,
             launch_shape(args, plan), stream, args);
    };
    switch (plan.segments) {
      case 2:
        return run(state_lanes_forward<T, G, 2, kStatesOnly>);
      case 4:
        return run(state_lanes_forward<T, G, 4, kStatesOnly>);
      default:
        return run(state_lanes_forward<T, G, 8, kStatesOnly>);
    }
  });
}

}  // namespace

void launch_state_lanes_forward(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  launch_state_lanes<false>(args, plan, out, stream);
}

void launch_state_lanes_ahead(const SelectiveScanGpuArguments& args,
                              const SelectiveScanGpuPlan& plan, GpuStream stream) {
  launch_state_lanes<true>(args, plan, DType::kFloat32, stream);
}

}  // namespace linescan
