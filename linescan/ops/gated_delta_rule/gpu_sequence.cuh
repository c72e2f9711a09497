// gated_delta_rule where there are many sequences with small heads: a warp walks a whole sequence of a value
// head, 16 tokens at a time, and keeps the state and everything that a chunk's tokens have to do with each other
// in registers. What the forward and the backward pass share; half types, K and V up to 32.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_sequence_memory.cuh"

namespace linescan {

// What a chunk's tokens have to do with each other. Products of decays, never quotients: one strong gate would leave
// nothing of those behind it.
template <typename T>
struct SequenceChunk {
  static constexpr int kPieces = std::is_same_v<T, BFloat16> ? 1 : 2;  // of what A is rounded to

  Sums<2> E;   // nk_j times the decay between two tokens, zero above the diagonal
  Sums<2> kk;  // nk_i nk_j E (k_i . k_j), zero on the diagonal as well
  Sums<2> P;
  FragmentA<T> A;
  float decay;

  // The tiles of k and, with kQueries, q have arrived. own: SequenceGates::value_of(). Without kInverse A is known.
  template <bool kQueries, bool kInverse = true, class Tiles>
  __device__ __forceinline__ void prepare(const Tiles& tiles, const SequenceStage<T>& stage,
                                          float own, const DeltaInputs<T>& in, int tokens) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
    // Products over a token's block of 8, in the lane of the token; nobody reads those of lanes 16 to 31, which have betas.
    float upto = own, ahead = __shfl_down_sync(kAllLanes, own, 1, 8);
    if (lane % 8 == 7) ahead = 1.f;
#pragma unroll
    for (int by = 1; by < 8; by *= 2) {
      const float before = __shfl_up_sync(kAllLanes, upto, by, 8);
      const float behind = __shfl_down_sync(kAllLanes, ahead, by, 8);
      if (lane % 8 >= by) upto *= before;
      if (lane % 8 + by < 8) ahead *= behind;
    }
    const float first = __shfl_sync(kAllLanes, upto, 7), second = __shfl_sync(kAllLanes, upto, 15);
    decay = first * second;

    const TokenColumns<T> k = stage.columns(kTileK);
    kk.clear();
    multiply_tokens(kk, stage.operand(kTileK), k);
    if constexpr (kQueries) {
      P.clear();
      multiply_tokens(P, stage.operand(kTileQ), k);
    }
    if (in.norm) {
      const auto keep_diagonal = [&](SequenceRow row, const Sums<2>& squares) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (c + i == g) {
            tiles.row(row, g) = squares.tiles[0][i];
            tiles.row(row, 8 + g) = squares.tiles[1][2 + i];
          }
      };
      keep_diagonal(kSquareK, kk);
      if constexpr (kQueries) {
        Sums<2> qq;
        qq.clear();
        multiply_tokens(qq, stage.operand(kTileQ), stage.columns(kTileQ));
        keep_diagonal(kSquareQ, qq);
      }
      __syncwarp();
    }
    if (lane < kSequenceTokens) {
      const float valid = lane < tokens ? 1.f : 0.f;
      const auto factor = [&](SequenceRow row) {
        return in.norm ? valid * rsqrtf(tiles.row(row, lane) + 1e-6f) : valid;
      };
      const float nk = factor(kSquareK), before = lane < 8 ? upto : first * upto;
      tiles.row(kOwnDecay, lane) = own;
      tiles.row(kUpto, lane) = upto;
      tiles.row(kAhead, lane) = nk * ahead;
      tiles.row(kTokenFactorK, lane) = nk;
      // Selected, not multiplied: gates that are positive may make infinite what a missing token would get.
      tiles.row(kTokenReadK, lane) = lane < tokens ? nk * before : 0.f;
      tiles.row(kTokenWrite, lane) = lane < tokens ? nk * (lane < 8 ? ahead * second : ahead) : 0.f;
      if constexpr (kQueries) {
        const float nq = in.scale * factor(kSquareQ);
        tiles.row(kTokenFactorQ, lane) = nq;
        tiles.row(kTokenReadQ, lane) = lane < tokens ? nq * before : 0.f;
      }
    } else {
      tiles.row(kTokenBeta, lane - kSequenceTokens) = own;
    }
    __syncwarp();
    fill_decays(tiles);
    kk = lower_blocks([&](int tile, int n, int i, int j) {
      return i == j ? 0.f : E.tiles[tile][n] * tiles.row(kTokenFactorK, i) * kk.tiles[tile][n];
    });
    if constexpr (kInverse)
      A = operand<T>(inverse_of<kPieces>(lower_blocks([&](int tile, int n, int i, int) {
                       return tiles.row(kTokenBeta, i) * kk.tiles[tile][n];
                     })),
                     0);
    if constexpr (kQueries)
      P = lower_blocks([&](int tile, int n, int i, int) {
        return E.tiles[tile][n] * tiles.row(kTokenFactorQ, i) * P.tiles[tile][n];
      });
  }

  // u^T from S^T in front of the chunk.
  template <class Tiles>
  __device__ __forceinline__ TurnedTokens corrections(const Tiles& tiles,
                                                      const SequenceStage<T>& stage,
                                                      const SquareOperand<T>& state) const {
    TurnedTokens x;
    x.clear();
    read_state(x, state, stage.columns(kTileK));
    TurnedOperand<T> v;
    v.load(stage.tile(kTileV));
    x.map([&](float sum, int m, int i, int j, int token) {
      return tiles.row(kTokenBeta, token) *
             (value_of(v.parts[m], j >> 1, 2 * i + (j & 1)) - tiles.row(kTokenReadK, token) * sum);
    });
    TurnedOperand<T> left;
    left.round(x);
    x.clear();
    mix_tokens(x, left, A);
    return x;
  }

 private:
  template <class Tiles>
  __device__ __forceinline__ void fill_decays(const Tiles& tiles) {
    const int g = threadIdx.x % 32 / 4, last = threadIdx.x % 4 * 2 + 1;
    float near[2][2];  // of a block on the diagonal, columns last - 1 and last
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      float x = g > last ? tiles.row(kOwnDecay, 8 * block + g) : 1.f;
#pragma unroll
      for (int by = 1; by < 8; by *= 2) {
        const float before = __shfl_up_sync(kAllLanes, x, 4 * by);
        if (g >= by) x *= before;
      }
      near[block][1] = g >= last ? x : 0.f;
      near[block][0] = g >= last       ? x * tiles.row(kOwnDecay, 8 * block + last)
                       : g + 1 == last ? 1.f
                                       : 0.f;
#pragma unroll
      for (int c = 0; c < 2; ++c)
        near[block][c] *= tiles.row(kTokenFactorK, 8 * block + last - 1 + c);
    }
    E = lower_blocks([&](int tile, int n, int i, int j) {
      if (tile == 1) return near[1][n & 1];
      return n < 2 ? near[0][n] : tiles.row(kUpto, i) * tiles.row(kAhead, j);
    });
  }
};

// state <- decay state + (write o u)^T K
template <typename T, class Tiles>
__device__ __forceinline__ void advance_state(Sums<4> (&state)[2], const Tiles& tiles, float decay,
                                              const TurnedTokens& u, const T* k_tile) {
  TurnedOperand<T> written;
  written.round(u, [&](int token) { return tiles.row(kTokenWrite, token); });
#pragma unroll
  for (int m = 0; m < 2; ++m)
    state[m] = state[m].mapped([&](float x, int, int) { return decay * x; });
  write_state(state, written, k_tile);
}

}  // namespace linescan
