// Selective scan on the GPU, forward, where wanted with the states at the start of every tile; and the first kernel
// of the backward pass, which leaves nothing but those.
//
//   dt = softplus(delta + delta_bias)   h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t]
//   y[t] = sum_n C[t,n] h[t,n] + D u[t]             out = y or y silu(z)
//
//   u, delta, z, out [batch, channels, length]   B, C [batch, groups, states, length]
//   A [channels, states]   D, delta_bias [channels]   states [batch, channels, states]
//
// A lane keeps 16 steps in registers and meets one state after another. Lanes that share a row scan
// their steps from zero first, learn by shuffles what enters their segment, and walk again. Warps of
// a team have the same rows and different states; the first of them adds up y.
// Source:    Gu & Dao 2023, arXiv:2312.00752.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp: serial (a lane has a row) or segmented.

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_factors.cuh"
#include "linescan/ops/selective_scan/gpu_fetch.cuh"
#include "linescan/ops/selective_scan/gpu_write.cuh"

namespace linescan {
namespace {

template <int kSegments, bool kConstant, bool kStatesOnly>
__global__ void __launch_bounds__(kGpuScanMaxWarps* kGpuWarp, 2)
    scan_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  using Shape = GpuShape<kSegments>;
  const GpuPlace<kSegments> place(args);
  const bool last_segment = place.exists() && place.segment == kSegments - 1;
  unsigned char* shared = shared_memory();
  float* exchange =
      reinterpret_cast<float*>(shared + args.shared.exchange) + place.warp * args.exchange;
  unsigned char* arrivals = shared + args.shared.arrivals;
  const int chunk_floats = 2 * args.state_tile * Shape::kPitch;

  const RowCarries<float2, CarryPlace::kEither> carries(args, place);  // state, A log2 e
  const int64_t carry_step = args.shares * carries.step();
  // What a state needs before its steps can begin, while the state before it is at work.
  const auto look_ahead = [&](int n, const float2* carry) {
    return n < args.states && place.exists() ? *carry : make_float2(0, 0);
  };

  // The last tile's states start nothing.
  const int tiles = kStatesOnly ? args.tiles - 1 : args.tiles;
  const auto chunk_at = [&](int tile, int first) {
    return GpuChunk<kSegments>{GpuTile<kSegments>(args, tile), first,
                               min(args.states - first, args.state_tile)};
  };

  GpuCursor cursors[kGpuInputs];
#pragma unroll
  for (int i = 0; i < kGpuInputs; ++i)
    if (i < 2 || (i == 2 && !kStatesOnly)) cursors[i] = GpuCursor(args.inputs[i], place, 0);
  const float D = args.D && place.exists() ? args.D[place.channel] : 0;
  const float bias = args.delta_bias && place.exists() ? args.delta_bias[place.channel] : 0;
  int parity = 0;
  for (int index = -1; index < tiles; ++index) {
    if (index >= 0) {
      wait_copies<0>();
      sync_team(args);
    }
    if (index + 1 < tiles) {
      fetch<1>(args, place, cursors, index + 1);
      if (index < 0) fetch_factors(args, place, chunk_at(0, 0), arrivals);
      commit_copies();
    }
    if (index < 0) {  // while the first tile is on its way
      if (place.exists())
        for (int n = place.share + place.segment * args.shares; n < args.states;
             n += kSegments * args.shares)
          *carries(n) =
              make_float2(args.initial_state ? args.initial_state[place.states_at(args) + n] : 0,
                          args.A[int64_t{place.channel} * args.states + n] * kLog2e);
      __syncwarp();
      continue;
    }

    // At once: the loop over steps has no registers for it beside outputs.
    if (!kStatesOnly && args.tile_states != nullptr && index > 0 && place.exists())
#pragma unroll 1
      for (int n = place.share + place.segment * args.shares; n < args.states;
           n += kSegments * args.shares)
        *tile_state(args, place, index, n) = carries(n)->x;

    const GpuTile<kSegments> tile(args, index);
    float dt[kGpuItems] = {}, du[kGpuItems] = {}, y[kGpuItems] = {}, sum_dt = 0;
    float2* carry = carries(place.share);
    float2 ahead = look_ahead(place.share, carry);
    read(args, args.inputs[1], place, index, dt);
    read(args, args.inputs[0], place, index, du);
    const int rest = place.exists() ? tile.steps - place.segment * kGpuItems : 0;
    if (args.softplus)
      for_fours([&](int i) {
#pragma unroll
        for (int j = i; j < i + 4; ++j) dt[j] = softplus(dt[j] + bias);
      });
    else
      for_fours([&](int i) {
#pragma unroll
        for (int j = i; j < i + 4; ++j) dt[j] += bias;
      });
    if (!tile.whole() || !place.full)
      for_fours([&](int i) {
#pragma unroll
        for (int j = i; j < i + 4; ++j)  // steps that change nothing
          if (j >= rest) dt[j] = du[j] = 0;
      });
    for_fours([&](int i) {
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        y[j] = place.share == 0 ? D * du[j] : 0;
        du[j] *= dt[j];
        sum_dt += dt[j];
      }
    });

    for (int first = 0; first < args.states; first += args.state_tile, parity ^= 1) {
      const GpuChunk<kSegments> chunk = chunk_at(index, first);
      float* factors =
          reinterpret_cast<float*>(shared + args.shared.factors) + parity * chunk_floats;
      if (first > 0) wait_copies<0>();
      unpack_factors(args, chunk, arrivals, factors);
      const bool same_tile = first + args.state_tile < args.states;
      if (same_tile || index + 1 < tiles)
        fetch_factors(args, place,
                      same_tile ? chunk_at(index, first + args.state_tile) : chunk_at(index + 1, 0),
                      arrivals);
      commit_copies();
      __syncthreads();

      // One state's steps. The carry is written back after all lanes of the row have read it.
      const auto walk = [&](int n, float h, float rate, float* own_carry) {
        const GpuFactorRow<kConstant> B(args, place, 0, first, n - first, factors);
        const GpuFactorRow<kConstant> C(args, place, 1, first, n - first, factors);
        if constexpr (kSegments > 1) {
          float a[kGpuItems], b[kGpuItems];
          Affine all{exp2_approx(rate * sum_dt), 0};
          for_fours([&](int i) {
            const float4 four = B(i);
            const float own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              a[i + j] = exp2_approx(dt[i + j] * rate);
              b[i + j] = du[i + j] * own[j];
              all.offset = fmaf(a[i + j], all.offset, b[i + j]);
            }
          });
          const Affine before = scan_lanes<kSegments, false>(all, place.segment);
          __syncwarp();  // all lanes have looked ahead at what the last one now replaces
          if (last_segment) *own_carry = all(h);
          h = before(h);
          if constexpr (!kStatesOnly)
            for_fours([&](int i) {
              const float4 four = C(i);
              const float own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
              for (int j = 0; j < 4; ++j) {
                h = fmaf(a[i + j], h, b[i + j]);
                y[i + j] = fmaf(own[j], h, y[i + j]);
              }
            });
        } else {
          for_fours([&](int i) {
            const float4 four_B = B(i), four_C = kStatesOnly ? four_B : C(i);
            const float own_B[4] = {four_B.x, four_B.y, four_B.z, four_B.w};
            [[maybe_unused]] const float own_C[4] = {four_C.x, four_C.y, four_C.z, four_C.w};
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              h = fmaf(exp2_approx(dt[i + j] * rate), h, du[i + j] * own_B[j]);
              if constexpr (!kStatesOnly) y[i + j] = fmaf(own_C[j], h, y[i + j]);
            }
          });
          if (last_segment) *own_carry = h;
        }
      };
      for (int n = first + place.share; n < first + chunk.count; n += args.shares) {
        const float2 now = ahead;
        float2* const own_carry = carry;
        carry += carry_step;
        ahead = look_ahead(n + args.shares, carry);
        if (kStatesOnly && place.exists() && place.segment == 0 && index > 0)
          *tile_state(args, place, index, n) = now.x;
        walk(n, now.x, now.y, &own_carry->x);
      }
    }

    if constexpr (!kStatesOnly) {
      if (args.shares > 1) {
        give_items(y, exchange, place.lane);
        __syncthreads();
        if (place.share == 0) add_items(args, y, exchange, place.lane);
        __syncthreads();
        if (place.share > 0) continue;
      }
      if (args.inputs[2].data) {
        float z[kGpuItems] = {};
        read(args, args.inputs[2], place, index, z);
        for_fours([&](int i) {
#pragma unroll
          for (int j = i; j < i + 4; ++j) y[j] *= z[j] * sigmoid(z[j]);
        });
      }
      write(args.out, exchange, place, tile, y);
    }
    __syncwarp();  // the tile's memory is filled again
  }

  if (!last_segment) return;
  if (kStatesOnly && args.tiles > 1)
    for (int n = place.share; n < args.states; n += args.shares)
      *tile_state(args, place, args.tiles - 1, n) = carries(n)->x;
  if (!kStatesOnly && args.last_state)
    for (int n = place.share; n < args.states; n += args.shares)
      args.last_state[place.states_at(args) + n] = carries(n)->x;
}

template <bool kStatesOnly>
void launch_forward(const SelectiveScanGpuArguments& args, const SelectiveScanGpuPlan& plan,
                    GpuStream stream) {
  const bool constant = args.factors[0].constant || args.factors[1].constant;
  const auto run = [&](auto* kernel) {
    launch("selective_scan forward", kernel, launch_shape(args, plan), stream, args);
  };
  if (constant) return run(scan_forward<kGpuConstantSegments, true, kStatesOnly>);
  dispatch_segments(plan.segments,
                    [&]<int kSegments>() { run(scan_forward<kSegments, false, kStatesOnly>); });
}

}  // namespace

void launch_tile_states(const SelectiveScanGpuArguments& args, const SelectiveScanGpuPlan& plan,
                        GpuStream stream) {
  if (plan.state_lanes)
    launch_state_lanes_ahead(args, plan, stream);
  else if (plan.one_state)
    launch_one_state_forward(args, plan, DType::kFloat32, stream);
  else if (plan.channels_last)
    launch_channels_last_ahead(args, plan, stream);
  else
    launch_forward<true>(args, plan, stream);
}

void forward(const SelectiveScanProblem& problem, const SelectiveScanGpuPlan& plan,
             std::byte* workspace, GpuStream stream) {
  const SelectiveScanGpuArguments args = gpu_arguments(problem, nullptr, plan, false, workspace);
  if (plan.walkers)
    launch_walkers_forward(args, plan, problem.out.dtype, stream);
  else if (plan.state_lanes)
    launch_state_lanes_forward(args, plan, problem.out.dtype, stream);
  else if (plan.one_state)
    launch_one_state_forward(args, plan, problem.out.dtype, stream);
  else if (plan.channels_last)
    launch_channels_last_forward(args, plan, problem.out.dtype, stream);
  else
    launch_forward<false>(args, plan, stream);
}

}  // namespace linescan
