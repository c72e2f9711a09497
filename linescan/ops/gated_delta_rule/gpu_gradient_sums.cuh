// The gradients' kernel of warp groups (group_gradients.cu): gradients of gates and beta, from what the groups leave for
// every token. By the warps that finish gates.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_gate_gradient.cuh"
#include "linescan/ops/gated_delta_rule/gpu_gradient_tiles.cuh"

namespace linescan {

// What passes over the thread's token from those behind it to those in front of it.
template <class Tiles>
__device__ __forceinline__ float pairs_over_token(const Tiles& tiles) {
  static_assert(GradientFinishers::kThreads == Tiles::kChunk && Tiles::kShares == 2);
  const int token = in_register(GradientFinishers::thread());
  float sums[2][8] = {};
#pragma unroll 1
  for (int w = token / 16; w < Tiles::kChunk / 16; ++w)
#pragma unroll
    for (int group = 0; group < 2; ++group)
#pragma unroll
      for (int g = 0; g < 8; ++g) sums[group][g] += tiles.over_of(group, w, g)[token];
  float pairs = 0;
#pragma unroll
  for (int g = 0; g < 8; ++g) pairs += sums[0][g] + sums[1][g];
  return pairs;
}

// states_over_token() by a thread a token: scans of a warp's tokens, and a sum over those of the other warp.
template <class Tiles>
__device__ __forceinline__ float states_over_token(const Tiles& tiles) {
  static_assert(Tiles::kChunk == 64 && GradientFinishers::kThreads == 64);
  const int token = in_register(GradientFinishers::thread()), lane = token % 32;
  const auto of = [&](GradientRow which, int token) {
    float sum = 0;
#pragma unroll
    for (int share = 0; share < Tiles::kShares; ++share) sum += tiles.share(which, share)[token];
    return sum;
  };
  const float elsewhere = of(token < 32 ? kReads : kWrites, token ^ 32);
  float reads = of(kReads, token), writes = lane > 0 ? of(kWrites, token - 1) : 0.f;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float behind = __shfl_down_sync(kAllLanes, reads, step);
    const float in_front = __shfl_up_sync(kAllLanes, writes, step);
    if (lane + step < 32) reads += behind;
    if (lane >= step) writes += in_front;
  }
  return sum_of_lanes(elsewhere, 32) + reads + writes;
}

// `gates` [value head of a group, gate or beta, token]: the block's, from the parts of the keys so far.
template <typename T, int kParts, class Tiles>
__device__ __forceinline__ void finish_gates(const Tiles& tiles, const GradientArgs<T>& args,
                                             float* gates) {
  using Team = GradientFinishers;
  constexpr int kChunk = Tiles::kChunk;
  const DeltaInputs<T>& in = args.in;
  const GradientTurns turns(tiles.arrivals);

  for (int64_t item = blockIdx.x; item < args.chunks * in.heads; item += gridDim.x) {
    const int64_t number = item / in.heads;
    const int first_head = static_cast<int>(item % in.heads) * in.group();
    const DeltaChunk chunk = chunk_of(args.sequences, number, kChunk);
    if (chunk.tokens == 0) {
      clear_parameter_sums<Team>(args, number, first_head);
      continue;
    }
#pragma unroll 1
    for (int part = 0; part < kParts; ++part) {
      const bool last_part = part + 1 == kParts;
#pragma unroll 1
      for (int i = 0; i < in.group(); ++i) {
        turns.open();
        turns.wait_closed();
        TokenGradients sums =
            sum_gate_and_beta<Team>(tiles, pairs_over_token(tiles) + states_over_token(tiles));
        if (kParts > 1) {
          float* const so_far = gates + 2 * i * kChunk + Team::thread();
          if (part > 0) {
            sums.gate += so_far[0];
            sums.beta += so_far[kChunk];
          }
          if (!last_part) {
            so_far[0] = sums.gate;
            so_far[kChunk] = sums.beta;
          }
        }
        if (last_part) store_gate_and_beta<Team>(tiles, args, chunk, number, first_head + i, sums);
      }
    }
  }
}

}  // namespace linescan
