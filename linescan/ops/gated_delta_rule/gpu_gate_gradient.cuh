// The last step for a value head in the gradients' kernels: the gate's gradient from everything that passes over
// a token, beta's, and those of the parameters behind the gate.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_gradients.cuh"

namespace linescan {

// Of a chunk and value head.
template <typename T>
__device__ __forceinline__ float& parameter_sum(const GradientArgs<T>& args, int64_t number,
                                                int which, int h) {
  return args.parameter_sums[(2 * number + which) * args.in.value_heads + h];
}
// The threads that do this are a team: kThreads, thread() of the one that asks, and meet().

// For a chunk that does not exist.
template <class Team, typename T>
__device__ __forceinline__ void clear_parameter_sums(const GradientArgs<T>& args, int64_t number,
                                                     int first_head) {
  for (int i = Team::thread(); i < 2 * args.in.group(); i += Team::kThreads)
    parameter_sum(args, number, i % 2, first_head + i / 2) = 0.f;
}

// A token's terms of the sums for the parameters behind the gate.
struct ParameterTerms {
  float A_log = 0, dt_bias = 0;
};

// Stores the gradients of what went in for a token's gate and beta, whose own gradients are gg and gbeta.
template <typename T>
__device__ __forceinline__ ParameterTerms store_token_gradients(
    const DeltaInputs<T>& in, const DeltaRows<float>& to_g, const DeltaRows<unsigned char>& to_beta,
    int64_t batch, int64_t token, int h, float gg, float gbeta) {
  ParameterTerms terms;
  if (in.sigmoid) {
    const float x = sigmoid(in.raw_beta(batch, token, h));
    gbeta *= in.largest_beta * x * (1.f - x);
  }
  if (in.A_log) {
    const float rate = expf(in.A_log[h]);
    const float raw = *in.g.at(batch, token, h) + (in.dt_bias ? in.dt_bias[h] : 0.f);
    terms.A_log = -gg * rate * softplus(raw);
    gg *= -rate * softplus_slope(raw);
    terms.dt_bias = gg;
  }
  if (to_g.data) *to_g.at(batch, token, h) = gg;
  if (to_beta.data)
    write_as(to_beta.data, in.beta_type,
             batch * to_beta.batch + token * to_beta.token + h * to_beta.head, gbeta);
  return terms;
}

// The gradients of a token's gate and beta.
struct TokenGradients {
  float gate = 0, beta = 0;
};

// What the gradients' kernels leave in shared memory for every token, in kShares parts, before a team meets and sums it up:
//   kReads       q . (S gO) - beta k . (S gX), scaled: what a token reads from the state
//   kWrites      k . (gS' u), scaled: what it writes
//   kToBeta      all of the gradient of beta but kCorrection, which is gX . v
//   kWarpSums    <gS', S> times the chunk's decay, a part for each warp of the kThreads that multiply
// A token has as many threads of a team as there are for each of the chunk's.

// Reads by the thread's token and those behind it, and writes by those in front of it, which all pass over its gate; a share
// of the token's threads.
template <class Team, class Tiles>
__device__ __forceinline__ float states_over_token(const Tiles& tiles) {
  constexpr int kChunk = Tiles::kChunk;
  constexpr int kLanes = Team::kThreads / kChunk, kLaneTokens = kChunk / kLanes;
  const int own_token = Team::thread() / kLanes, own_lane = Team::thread() % kLanes;
  float sum = 0;
#pragma unroll
  for (int n = 0; n < kLaneTokens; ++n) {
    const int i = own_lane * kLaneTokens + n;
#pragma unroll
    for (int share = 0; share < Tiles::kShares; ++share)
      sum += tiles.share(i < own_token ? kWrites : kReads, share)[i];
  }
  return sum;
}

// Of the thread's token, in its first lane. `passing`: this thread's share of all that passes over its token.
template <class Team, class Tiles>
__device__ __forceinline__ TokenGradients sum_gate_and_beta(const Tiles& tiles, float passing) {
  constexpr int kLanes = Team::kThreads / Tiles::kChunk;
  const int own_token = Team::thread() / kLanes;
  TokenGradients sums = {sum_of_lanes(passing, kLanes)};
  if (Team::thread() % kLanes != 0) return sums;
#pragma unroll
  for (int w = 0; w < Tiles::kThreads / 32; ++w) sums.gate += tiles.share(kWarpSums)[w];
  sums.beta = tiles.share(kCorrection)[own_token];
#pragma unroll
  for (int i = 0; i < Tiles::kShares; ++i) sums.beta += tiles.share(kToBeta, i)[own_token];
  return sums;
}

// By the same team; sums of the thread's token, from its first lane.
template <class Team, class Tiles, typename T>
__device__ __forceinline__ void store_gate_and_beta(const Tiles& tiles, const GradientArgs<T>& args,
                                                    const DeltaChunk& chunk, int64_t number, int h,
                                                    const TokenGradients& sums) {
  constexpr int kLanes = Team::kThreads / Tiles::kChunk;
  const int thread = Team::thread();
  const int own_token = thread / kLanes, own_lane = thread % kLanes;
  const DeltaInputs<T>& in = args.in;
  ParameterTerms terms;
  if (own_lane == 0 && own_token < chunk.tokens)
    terms = store_token_gradients(in, args.g, args.beta, chunk.walk.batch, chunk.token(own_token),
                                  h, sums.gate, sums.beta);
  if (in.A_log) {
    terms.A_log = sum_of_lanes(terms.A_log, 32);
    terms.dt_bias = sum_of_lanes(terms.dt_bias, 32);
    Team::meet();
    if (thread % 32 == 0) {
      tiles.share(kReads)[thread / 32] = terms.A_log;
      tiles.share(kWrites)[thread / 32] = terms.dt_bias;
    }
    Team::meet();
    if (thread < 2) {
      float sum = 0;
      for (int w = 0; w < Team::kThreads / 32; ++w)
        sum += tiles.share(thread == 0 ? kReads : kWrites)[w];
      parameter_sum(args, number, thread, h) = sum;
    }
  }
}

}  // namespace linescan
