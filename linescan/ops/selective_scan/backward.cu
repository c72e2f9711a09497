// Selective scan on the GPU, backward. Walks a row's tiles from the last one to the first; a tile's
// states are computed again from the state at its start, which the forward pass or a first kernel has left.
//
//   gh[t,n] = C[t,n] gy[t] + k[t+1,n]     k[t,n] = a[t,n] gh[t,n]     gy: of out, times silu(z)
//   gB = gh dt u    gC = gy h             summed over the rows of a group
//   gu = D gy + dt sum_n gh B             gdt = u sum_n gh B + sum_n A k h[t-1]
//   gA = sum_t dt k h[t-1]                gD = sum_t gy u        ginitial = k[0]
//
//   Shapes as in forward.cu; a gradient has the shape of its tensor.
// Warps of a team have the same rows and different states; the first of them finishes gu, the last gdelta.
// Sums over rows: the lanes of a warp by shuffles, its block's teams through shared memory, blocks and
//            batch by device_code/ordered_sums.cu; every order is fixed by the plan.
// Reference: reference.cpp; derivation in README.md.
// Chosen by: gpu_plan.cpp: serial (a lane has a row) or segmented.

#include <algorithm>
#include <utility>

#include "linescan/ops/device_code/ordered_sums.h"
#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_backward_carries.cuh"
#include "linescan/ops/selective_scan/gpu_factor_sums.cuh"
#include "linescan/ops/selective_scan/gpu_fetch.cuh"
#include "linescan/ops/selective_scan/gpu_write.cuh"

namespace linescan {
namespace {

constexpr int kMaxThreads = 192;

// kTogether: states that are walked at once, whose chains hide each other's latency where there are few warps.
template <int kSegments, bool kConstant, bool kGate, int kTogether>
__global__ void __launch_bounds__(kTogether == 1 ? kMaxThreads : kScanTogetherWarps * kGpuWarp, 2)
    scan_backward(const __grid_constant__ SelectiveScanGpuArguments args) {
  using Shape = GpuShape<kSegments>;
  const GpuPlace<kSegments> place(args);
  unsigned char* shared = shared_memory();
  float* exchange =
      reinterpret_cast<float*>(shared + args.shared.exchange) + place.warp * args.exchange;
  unsigned char* arrivals = shared + args.shared.arrivals;
  const int chunk_floats = 2 * args.state_tile * Shape::kPitch;
  float* sums = reinterpret_cast<float*>(shared + args.shared.sums);
  const GpuSequence& z_input = args.inputs[2];
  const GpuSequence& gradient = args.inputs[3];

  const bool first_lane = place.exists() && place.segment == 0;
  // Several states go together where rows hand them on in shared memory.
  constexpr CarryPlace kPlace = kTogether > 1 ? CarryPlace::kShared : CarryPlace::kEither;
  const BackwardCarries<kSegments, kPlace> carries(args, place, kConstant ? 5 : 3);
  const int64_t carry_step = args.shares * carries.step();
  // What a state needs before its steps can begin, while the state before it is at work.
  const auto look_ahead = [&](int n, const float* carry) {
    return n < args.states && place.exists() ? carries.read(carry) : BackwardCarry{};
  };
  const int block_rows = args.rows;
  const bool first_share = place.share == 0, last_share = place.share == args.shares - 1;
  const auto states_of = [&](int parity) {
    return reinterpret_cast<float*>(shared + args.shared.states) +
           parity * args.state_tile * block_rows;
  };
  const auto chunk_at = [&](int tile, int first) {
    return GpuChunk<kSegments>{GpuTile<kSegments>(args, tile), first,
                               min(args.states - first, args.state_tile)};
  };

  const auto bring_chunk = [&](int tile, int first, int parity) {
    const GpuChunk<kSegments> chunk = chunk_at(tile, first);
    fetch_factors(args, place, chunk, arrivals);
    fetch_states(args, place, tile, first, chunk.count, states_of(parity));
  };

  GpuCursor cursors[kGpuInputs];
#pragma unroll
  for (int i = 0; i < kGpuInputs; ++i)
    if (kGate || i != 2) cursors[i] = GpuCursor(args.inputs[i], place, args.tiles - 1);
  const float D = args.D && place.exists() ? args.D[place.channel] : 0;
  const float bias = args.delta_bias && place.exists() ? args.delta_bias[place.channel] : 0;
  int parity = 0;
  float D_sum = 0, bias_sum = 0;
  for (int index = args.tiles; index >= 0; --index) {
    if (index < args.tiles) {
      wait_copies<0>();
      sync_team(args);
    }
    if (index > 0) {
      fetch<-1>(args, place, cursors, index - 1);
      if (index == args.tiles) bring_chunk(index - 1, 0, 0);
      commit_copies();
    }
    if (index == args.tiles) {  // while the first tile is on its way
      if (place.exists())
        for (int n = place.share + place.segment * args.shares; n < args.states;
             n += kSegments * args.shares) {
          float* const own = carries(n);
          own[0] = args.last_state ? args.last_state[place.states_at(args) + n] : 0, own[1] = 0;
          carries.A(own) = args.A[int64_t{place.channel} * args.states + n];
          if constexpr (kConstant) carries.sum(own, 0) = carries.sum(own, 1) = 0;
        }
      __syncwarp();
      continue;
    }

    const GpuTile<kSegments> tile(args, index);
    float dt[kGpuItems] = {}, du[kGpuItems] = {}, gy[kGpuItems] = {}, sum_dt = 0;
    float through_B[kGpuItems] = {}, through_a[kGpuItems] = {};  // sum_n gh B, sum_n A k h[t-1]
    float y[kGate ? kGpuItems : 1] = {};
    float* carry = carries(place.share);
    BackwardCarry ahead[kTogether];
#pragma unroll
    for (int m = 0; m < kTogether; ++m)
      ahead[m] = look_ahead(place.share + m * args.shares, carry + m * carry_step);
    read(args, args.inputs[1], place, index, dt);
    read(args, args.inputs[0], place, index, du);
    if (gradient.data) read(args, gradient, place, index, gy);
    if constexpr (kGate)
      if (z_input.data) {
        float z[kGpuItems] = {};
        read(args, z_input, place, index, z);
        for_fours([&](int i) {
#pragma unroll
          for (int j = i; j < i + 4; ++j) gy[j] *= z[j] * sigmoid(z[j]);
        });
      }
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
          if (j >= rest) dt[j] = du[j] = gy[j] = 0;
      });
    for_fours([&](int i) {
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        if constexpr (kGate) y[j] = D * du[j];
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
      if (same_tile || index > 0)
        bring_chunk(same_tile ? index : index - 1, same_tile ? first + args.state_tile : 0,
                    parity ^ 1);
      commit_copies();
      __syncthreads();

      // Some states' steps, there and back.
      const auto walk = [&](int n, const BackwardCarry(&now)[kTogether], float* own_carries) {
        const auto factor_row = [&](int which, int m) {
          return GpuFactorRow<kConstant>(args, place, which, first, n + m * args.shares - first,
                                         factors);
        };
        // A constant one is read once: of one state at a time.
        const GpuFactorRow<kConstant> only_B = factor_row(0, 0), only_C = factor_row(1, 0);
        const auto factor = [&](int which, int m) {
          if constexpr (kTogether == 1) return which == 0 ? only_B : only_C;
          return factor_row(which, m);
        };
        const auto four_of = [](const float4& four, float(&x)[4]) {
          x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        };
        const float* own_states =
            states_of(parity) + place.team * Shape::kRows + place.row + (n - first) * block_rows;
        float a[kTogether][kGpuItems] = {}, h[kTogether][kGpuItems] = {};
        float k[kTogether], before[kTogether];     // where the lane's steps end and begin
        [[maybe_unused]] float tile_k[kTogether];  // where the tile begins, in its first lane
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          k[m] = now[m].k;
          before[m] = place.exists() ? own_states[m * args.shares * block_rows] : 0;
        }
        for_fours([&](int i) {
#pragma unroll
          for (int j = i; j < i + 4; ++j)
#pragma unroll
            for (int m = 0; m < kTogether; ++m) a[m][j] = exp2_approx(dt[j] * (now[m].A * kLog2e));
        });
        if constexpr (kSegments > 1) {
          Affine ahead_of[kTogether], back[kTogether];
#pragma unroll
          for (int m = 0; m < kTogether; ++m)
            ahead_of[m] = back[m] = {exp2_approx(now[m].A * kLog2e * sum_dt), 0};
          for_fours([&](int i) {
            float own[kTogether][4];
#pragma unroll
            for (int m = 0; m < kTogether; ++m) four_of(factor(0, m)(i), own[m]);
#pragma unroll
            for (int j = 0; j < 4; ++j)
#pragma unroll
              for (int m = 0; m < kTogether; ++m)
                ahead_of[m].offset = fmaf(a[m][i + j], ahead_of[m].offset, du[i + j] * own[m][j]);
          });
          for_fours_backwards([&](int i) {
            float own[kTogether][4];
#pragma unroll
            for (int m = 0; m < kTogether; ++m) four_of(factor(1, m)(i), own[m]);
#pragma unroll
            for (int j = 3; j >= 0; --j)
#pragma unroll
              for (int m = 0; m < kTogether; ++m)
                back[m].offset = a[m][i + j] * fmaf(own[m][j], gy[i + j], back[m].offset);
          });
          Affine behind[kTogether];
#pragma unroll
          for (int m = 0; m < kTogether; ++m) {
            before[m] = scan_lanes<kSegments, false>(ahead_of[m], place.segment)(before[m]);
            behind[m] = scan_lanes<kSegments, true>(back[m], place.segment);
          }
#pragma unroll
          for (int m = 0; m < kTogether; ++m) {
            tile_k[m] = back[m](k[m]);
            k[m] = behind[m](k[m]);
          }
          __syncwarp();  // all lanes have looked ahead at what the first one will replace
        }
        float state[kTogether];
#pragma unroll
        for (int m = 0; m < kTogether; ++m) state[m] = before[m];
        for_fours([&](int i) {
          float own_B[kTogether][4];
#pragma unroll
          for (int m = 0; m < kTogether; ++m) four_of(factor(0, m)(i), own_B[m]);
#pragma unroll
          for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int m = 0; m < kTogether; ++m)
              h[m][i + j] = state[m] = fmaf(a[m][i + j], state[m], du[i + j] * own_B[m][j]);
          if constexpr (kGate) {
#pragma unroll
            for (int m = 0; m < kTogether; ++m) {
              float own_C[4];
              four_of(factor(1, m)(i), own_C);
#pragma unroll
              for (int j = 0; j < 4; ++j) y[i + j] = fmaf(own_C[j], h[m][i + j], y[i + j]);
            }
          }
        });
        float A_sum[kTogether] = {};
        // From here on a[] becomes the row's share of gB, h[] that of gC.
        for_fours_backwards([&](int i) {
          float own_B[kTogether][4], own_C[kTogether][4];
#pragma unroll
          for (int m = 0; m < kTogether; ++m) {
            four_of(factor(0, m)(i), own_B[m]);
            four_of(factor(1, m)(i), own_C[m]);
          }
#pragma unroll
          for (int j = 3; j >= 0; --j) {
            const int at = i + j;
#pragma unroll
            for (int m = 0; m < kTogether; ++m) {
              const float gh = fmaf(own_C[m][j], gy[at], k[m]);
              k[m] = a[m][at] * gh;
              const float turn = k[m] * (at > 0 ? h[m][at > 0 ? at - 1 : 0] : before[m]);
              through_B[at] = fmaf(gh, own_B[m][j], through_B[at]);
              through_a[at] = fmaf(now[m].A, turn, through_a[at]);
              A_sum[m] = fmaf(dt[at], turn, A_sum[m]);
              a[m][at] = gh * du[at];
              h[m][at] *= gy[at];
            }
          }
        });
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          float* const own = own_carries + m * carry_step;
          A_sum[m] = sum_lanes<kSegments>(A_sum[m]);
          if (first_lane)
            *reinterpret_cast<float2*>(own) =
                make_float2(kSegments == 1 ? k[m] : tile_k[m], now[m].A_sum + A_sum[m]);
          if constexpr (kConstant) {
            const auto carry_sum = [&](const float(&x)[kGpuItems], int which) {
              float total = 0;
              for_fours([&](int i) { total += (x[i] + x[i + 1]) + (x[i + 2] + x[i + 3]); });
              total = sum_lanes<kSegments>(total);
              if (first_lane) carries.sum(own, which) += total;
            };
            if (args.constant_sums[0]) carry_sum(a[m], 0);
            if (args.constant_sums[1]) carry_sum(h[m], 1);
          }
        }
        // All, whether wanted or not: without a branch their shuffles hide each other's latency.
        int own = 0;
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          own = fold_lanes<kSegments>(a[m], place.lane);
          fold_lanes<kSegments>(h[m], place.lane);
        }
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          float* own_sums =
              sums +
              (place.team * 2 * args.state_tile + n + m * args.shares - first) * Shape::kPitch +
              place.segment * kGpuSegmentPitch + own;
          leave_sums<kSegments>(a[m], own_sums);
          leave_sums<kSegments>(h[m], own_sums + args.state_tile * Shape::kPitch);
        }
      };
      for (int n = first + place.share; n < first + chunk.count; n += kTogether * args.shares) {
        BackwardCarry now[kTogether];
        float* const own_carries = carry;
        carry += kTogether * carry_step;
#pragma unroll
        for (int m = 0; m < kTogether; ++m) {
          now[m] = ahead[m];
          ahead[m] = look_ahead(n + (kTogether + m) * args.shares, carry + m * carry_step);
        }
        walk(n, now, own_carries);
      }
      __syncthreads();
      write_factor_sums(args, place, chunk, sums);
    }

    if (args.shares > 1) {
      give_items(through_B, exchange, place.lane);
      give_items(through_a, exchange + kGpuExchange, place.lane);
      __syncthreads();
      float* shares = exchange - place.share * args.exchange;
      if (first_share || last_share) add_items(args, through_B, shares, place.lane);
      if (last_share) add_items(args, through_a, shares + kGpuExchange, place.lane);
      __syncthreads();
      if (!first_share && !last_share) continue;
    }
    float x[kGpuItems] = {};
    if constexpr (kGate)
      if (args.gz.data) {
        float z[kGpuItems] = {};
        read(args, z_input, place, index, z);
        if (gradient.data) read(args, gradient, place, index, x);
        for_fours([&](int i) {
#pragma unroll
          for (int j = i; j < i + 4; ++j) {
            const float s = sigmoid(z[j]);
            y[j] = gradient.data ? x[j] * y[j] * fmaf(z[j] * s, 1 - s, s) : 0;
          }
        });
        write(args.gz, exchange, place, tile, y);
      }
    read(args, args.inputs[0], place, index, x);
    for_fours([&](int i) {
#pragma unroll
      for (int j = i; j < i + 4; ++j) {
        if (j < rest) D_sum = fmaf(gy[j], x[j], D_sum);
        through_a[j] = fmaf(x[j], through_B[j], through_a[j]);
        through_B[j] = fmaf(D, gy[j], dt[j] * through_B[j]);
      }
    });
    if (args.gu.data && first_share) write(args.gu, exchange, place, tile, through_B);
    if (!last_share) continue;
    if (args.softplus) {
      read(args, args.inputs[1], place, index, x);
      for_fours([&](int i) {
#pragma unroll
        for (int j = i; j < i + 4; ++j) through_a[j] *= softplus_slope(x[j] + bias);
      });
    }
    for_fours([&](int i) {
#pragma unroll
      for (int j = i; j < i + 4; ++j)
        if (j < rest) bias_sum += through_a[j];
    });
    if (args.gdelta.data) write(args.gdelta, exchange, place, tile, through_a);
    __syncwarp();  // the tile's memory is filled again
  }

  D_sum = sum_lanes<kSegments>(D_sum);
  bias_sum = sum_lanes<kSegments>(bias_sum);
  if (!first_lane) return;
  const int64_t row = int64_t{place.item} * args.channels + place.channel;
  if (args.D_sums && first_share) args.D_sums[row] = D_sum;
  if (args.bias_sums && last_share) args.bias_sums[row] = bias_sum;
  for (int n = place.share; n < args.states; n += args.shares) {
    const int64_t at = row * args.states + n;
    float* const carry = carries(n);
    if (args.initial_gradient) args.initial_gradient[at] = carry[0];
    if (args.A_sums) args.A_sums[at] = carry[1];
    if constexpr (kConstant)
      for (int i = 0; i < 2; ++i)
        if (args.constant_sums[i]) args.constant_sums[i][at] = carries.sum(carry, i);
  }
}

// Sums over the blocks of a group, for the batch items of one slice. `states_last`: neighbouring states
// are neighbours in the partial sums.
OrderedSum sum_of_blocks(const SelectiveScanGpuArguments& args, const GpuFactorGradient& partial,
                         const TensorView& gradient, int items, bool states_last) {
  OrderedSum sum;
  sum.from = reinterpret_cast<const float*>(partial.data);
  sum.parts = args.blocks;
  sum.part_stride = partial.part / 4;
  const int64_t element = static_cast<int64_t>(size_of(gradient.dtype));
  for (int dim = 0; dim < 4; ++dim) {
    sum.sizes[dim] = gradient.shape[dim];
    sum.strides[dim] = gradient.strides[dim] * element;
  }
  if (states_last) {
    std::swap(sum.sizes[2], sum.sizes[3]);
    std::swap(sum.strides[2], sum.strides[3]);
  }
  sum.sizes[0] = items;
  sum.to = gradient.as<unsigned char>() + args.first_batch * sum.strides[0];
  sum.dtype = gradient.dtype;
  return sum;
}

// Sums over the batch: of [channels] or [channels, states].
OrderedSum sum_of_batch(const SelectiveScanGpuArguments& args, const float* partial,
                        const TensorView& gradient) {
  OrderedSum sum;
  sum.from = partial;
  sum.parts = args.batch;
  sum.part_stride = gradient.shape.elements();
  const int64_t element = static_cast<int64_t>(size_of(gradient.dtype));
  const bool flat = gradient.strides == contiguous_strides(gradient.shape);
  sum.sizes[3] = flat ? gradient.shape.elements() : gradient.shape[1];
  sum.strides[3] = element * (flat ? 1 : gradient.strides[1]);
  if (!flat) sum.sizes[2] = gradient.shape[0], sum.strides[2] = element * gradient.strides[0];
  sum.to = gradient.as<unsigned char>();
  sum.dtype = gradient.dtype;
  return sum;
}

// A to args.rates: a sum of one part.
OrderedSum turned_round(const SelectiveScanGpuArguments& args) {
  OrderedSum sum;
  sum.from = args.A;
  sum.parts = 1;
  sum.sizes[2] = args.channels, sum.sizes[3] = args.states;
  sum.to = reinterpret_cast<unsigned char*>(args.rates);
  sum.strides[2] = sizeof(float), sum.strides[3] = int64_t{args.channels} * 4;
  return sum;
}

}  // namespace

void backward(const SelectiveScanProblem& problem, const SelectiveScanGradients& gradients,
              const SelectiveScanGpuPlan& plan, std::byte* workspace, GpuStream stream) {
  SelectiveScanGpuArguments args = gpu_arguments(problem, &gradients, plan, false, workspace);
  const SelectiveScanGpuPlan ahead = ahead_plan(size_of(problem), plan);
  SelectiveScanGpuArguments states = gpu_arguments(problem, &gradients, ahead, true, workspace);
  states.tile_states = args.tile_states, states.state_steps = static_cast<int>(tile_of(plan));
  float* const kept = plan.kept_steps > 0 ? problem.states.as<float>() : nullptr;
  const bool constant = args.factors[0].constant || args.factors[1].constant;
  const bool gate = args.inputs[2].data != nullptr;
  void (*kernel)(SelectiveScanGpuArguments) = scan_backward<kGpuConstantSegments, true, true, 1>;
  if (!constant)
    dispatch_segments(plan.segments, [&]<int kSegments>() {
      kernel = gate ? scan_backward<kSegments, false, true, 1>
                    : scan_backward<kSegments, false, false, 1>;
      if constexpr (kSegments <= kScanTogetherLanes)
        if (!gate && plan.together > 1)
          kernel = scan_backward<kSegments, false, false, kScanTogether>;
    });
  const TensorView* factor_gradients[2] = {&gradients.B, &gradients.C};
  OrderedSums sums;
  if (args.rates) {
    sums.add(turned_round(args));
    launch_ordered_sums("selective_scan rates", sums, stream);
    sums = {};
  }
  for (int first = 0; first < args.batch; first += args.slice) {
    if (first > 0) {
      launch_ordered_sums("selective_scan sums", sums, stream);
      sums = {};
    }
    args.first_batch = states.first_batch = first;
    const int items = std::min(args.slice, args.batch - first);
    if (kept)
      args.tile_states = kept + int64_t{first} * args.states * args.channels;
    else if (plan.tiles > 1)
      launch_tile_states(states, ahead, stream);
    const DType out = gradients.out ? gradients.out.dtype : DType::kFloat32;
    if (plan.one_state)
      launch_one_state_backward(args, plan, out, stream);
    else if (plan.many_states)
      launch_many_states_backward(args, plan, out, stream);
    else if (plan.walkers)
      launch_walkers_backward(args, plan, out, stream);
    else if (plan.channels_last)
      launch_channels_last_backward(args, plan, out, stream);
    else
      launch("selective_scan backward", kernel, launch_shape(args, plan), stream, args);
    for (int i = 0; i < 2; ++i)
      if (args.sums[i].part != 0)
        sums.add(
            sum_of_blocks(args, args.sums[i], *factor_gradients[i], items, plan.channels_last));
  }
  const auto over_batch = [&](const float* partial, const TensorView& gradient) {
    if (gradient) sums.add(sum_of_batch(args, partial, gradient));
  };
  over_batch(args.A_sums, gradients.A);
  over_batch(args.D_sums, gradients.D);
  over_batch(args.bias_sums, gradients.delta_bias);
  for (int i = 0; i < 2; ++i)
    if (args.constant_sums[i]) over_batch(args.constant_sums[i], *factor_gradients[i]);
  launch_ordered_sums("selective_scan sums", sums, stream);
}

}  // namespace linescan
