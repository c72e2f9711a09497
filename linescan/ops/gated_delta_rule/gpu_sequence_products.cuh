// Matrix products of the kernels in which a warp walks a whole sequence (gpu_sequence.cuh): their operands, from tiles in
// shared memory and from the sums of other products, and the inverse of a chunk's triangle. Half types.
//
// Held transposed, as in the scans over chunks (chunk_scan.cu): S^T [32 of V, 32 of K] is two rows of Sums<4>. The sums
// of a product are the left operand of the next one, and their transposes the right one, without shared memory.
#pragma once

#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"

namespace linescan {

inline constexpr int kSequenceTokens = DeltaLayout::kSequenceTokens;  // of a chunk
inline constexpr int kSequenceWidth = DeltaLayout::kSequenceWidth;    // K and V, padded
inline constexpr int kSequenceTile = kSequenceTokens * kSequenceWidth;

// A tile [16 tokens, 32]: packs of eight numbers, those of a row in an order that gives eight neighbouring rows'
// packs of a column different banks. Rows that are eight apart have the same.
template <typename T>
__device__ __forceinline__ T* place_of(T* tile, int token, int column) {
  return tile + token * kSequenceWidth + ((column / 8) ^ (token / 2 % 4)) * 8;
}

// ---- Operands ------------------------------------------------------------------------------------

// B[k, n] = a[n, k] for n from 0 to 15
template <typename T>
struct Columns {
  FragmentB<T> b[2];

  __device__ __forceinline__ explicit Columns(const FragmentA<T>& a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i & 1].words[i >> 1] = a.words[i];
  }
};

template <typename T>
__device__ __forceinline__ FragmentA<T> transposed(const FragmentA<T>& a) {
  FragmentA<T> result;
#pragma unroll
  for (int i = 0; i < 4; ++i) result.words[i] = transpose_8x8(a.words[(i >> 1) + 2 * (i & 1)]);
  return result;
}

// A matrix of [16 or 32, 32] as operands of [16, 16].
template <typename T>
struct TokenOperand {
  FragmentA<T> parts[2];  // along the width

  __device__ __forceinline__ void load(const T* tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 2; ++k)
      load_matrices(parts[k].words, place_of(tile, lane % 16, 16 * k + lane / 16 * 8));
  }
};
// The same as right operands, tokens side by side: registers in the order in which products take them.
template <typename T>
struct TokenColumns {
  FragmentB<T> parts[2][2];  // along the width; tokens 0 to 7 and 8 to 15

  __device__ __forceinline__ void load(const T* tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t words[4];
      load_matrices(words, place_of(tile, lane % 8 + lane / 16 * 8, 16 * k + lane / 8 % 2 * 8));
#pragma unroll
      for (int i = 0; i < 4; ++i) parts[k][i >> 1].words[i & 1] = words[i];
    }
  }
  TokenColumns() = default;
  __device__ __forceinline__ explicit TokenColumns(const TokenOperand<T>& tokens) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const Columns<T> columns(tokens.parts[k]);
      parts[k][0] = columns.b[0];
      parts[k][1] = columns.b[1];
    }
  }
};
template <typename T>
struct SquareOperand {
  FragmentA<T> parts[2][2];

  __device__ __forceinline__ void round(const Sums<4> (&sums)[2]) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < 2; ++k) parts[m][k] = operand<T>(sums[m], k);
  }
  __device__ __forceinline__ SquareOperand turned() const {
    SquareOperand result;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int k = 0; k < 2; ++k) result.parts[m][k] = transposed(parts[k][m]);
    return result;
  }
};

// A matrix [32 of V, 16 tokens] in float32, and rounded as an operand whose depth is the tokens.
struct TurnedTokens {
  Sums<2> rows[2];

  __device__ __forceinline__ void clear() {
    rows[0].clear();
    rows[1].clear();
  }
  // x <- function(x, half of V, tile, number, token)
  template <class Function>
  __device__ __forceinline__ void map(const Function& function) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& x = rows[m].tiles[i][j];
          x = function(x, m, i, j, 8 * i + 2 * q + (j & 1));
        }
  }
};
template <typename T>
struct TurnedOperand {
  FragmentA<T> parts[2];  // 16 of V each

  // From a tile [16 tokens, 32 of V].
  __device__ __forceinline__ void load(const T* tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; ++m)
      load_matrices_transposed(parts[m].words,
                               place_of(tile, lane % 8 + lane / 16 * 8, 16 * m + lane / 8 % 2 * 8));
  }

  // factor(token)
  template <class Factor>
  __device__ __forceinline__ void round(const TurnedTokens& tokens, const Factor& factor) {
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < 2; ++m)
      parts[m].fill([&](int r, int i) {
        return factor(fragment_k(q, i)) * tokens.rows[m].tiles[i >> 1][2 * r + (i & 1)];
      });
  }
  __device__ __forceinline__ void round(const TurnedTokens& tokens) {
#pragma unroll
    for (int m = 0; m < 2; ++m) parts[m] = operand<T>(tokens.rows[m], 0);
  }
  // [16 tokens, 32 of V]
  __device__ __forceinline__ TokenOperand<T> turned() const {
    TokenOperand<T> result;
#pragma unroll
    for (int m = 0; m < 2; ++m) result.parts[m] = transposed(parts[m]);
    return result;
  }
};

// sums [16, 16] += left [16, 32] right^T
template <typename T>
__device__ __forceinline__ void multiply_tokens(Sums<2>& sums, const TokenOperand<T>& left,
                                                const TokenColumns<T>& right) {
#pragma unroll
  for (int k = 0; k < 2; ++k) multiply_add(sums, 0, left.parts[k], right.parts[k]);
}
// sums [32 of V, 16 tokens] += state [32 of V, 32 of K] tokens^T
template <typename T>
__device__ __forceinline__ void read_state(TurnedTokens& sums, const SquareOperand<T>& state,
                                           const TokenColumns<T>& tokens) {
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int m = 0; m < 2; ++m) multiply_add(sums.rows[m], 0, state.parts[m][k], tokens.parts[k]);
}
// sums [16 tokens, 32] += left [16, 32] turned^T
template <typename T>
__device__ __forceinline__ void read_rows(Sums<4>& sums, const TokenOperand<T>& left,
                                          const SquareOperand<T>& turned) {
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int n = 0; n < 2; ++n)
      multiply_add(sums, n, left.parts[k], Columns<T>(turned.parts[n][k]).b);
}
// sums [32 of V, 16] += left [32 of V, 16] right^T, right [16, 16]
template <typename T>
__device__ __forceinline__ void mix_tokens(TurnedTokens& sums, const TurnedOperand<T>& left,
                                           const FragmentA<T>& right) {
  const Columns<T> columns(right);
#pragma unroll
  for (int m = 0; m < 2; ++m) multiply_add(sums.rows[m], 0, left.parts[m], columns.b);
}
// B[k, n] = tile[k, n] for n from `column` on, 16 of them
template <typename T>
__device__ __forceinline__ void load_columns(FragmentB<T> (&b)[2], const T* tile, int column) {
  const int lane = threadIdx.x % 32;
  uint32_t words[4];
  load_matrices_transposed(words, place_of(tile, lane % 16, column + lane / 16 * 8));
#pragma unroll
  for (int i = 0; i < 4; ++i) b[i >> 1].words[i & 1] = words[i];
}
// state [32 of V, 32] += left [32 of V, 16 tokens] tile [16 tokens, 32]
template <typename T>
__device__ __forceinline__ void write_state(Sums<4> (&state)[2], const TurnedOperand<T>& left,
                                            const T* tile) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    FragmentB<T> b[2];
    load_columns(b, tile, 16 * n);
#pragma unroll
    for (int m = 0; m < 2; ++m) multiply_add(state[m], n, left.parts[m], b);
  }
}

// ---- Tokens with tokens ----------------------------------------------------------------------------

// The numbers of a product [16, 16] of this lane, zero above the blocks on the diagonal: function(tile, number, i, j).
template <class Function>
__device__ __forceinline__ Sums<2> lower_blocks(const Function& function) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  Sums<2> result;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    result.tiles[0][c] = function(0, c, g, 2 * q + c);
    result.tiles[0][2 + c] = function(0, 2 + c, 8 + g, 2 * q + c);
    result.tiles[1][c] = 0.f;
    result.tiles[1][2 + c] = function(1, 2 + c, 8 + g, 8 + 2 * q + c);
  }
  return result;
}

// An 8 x 8 matrix: lane 4 g + q has columns 2 q and 2 q + 1 of row g.
using Block8 = float[2];

// a b, b turned; kPieces of tf32 each.
template <int kPieces>
__device__ __forceinline__ void multiply_8x8(Block8& result, const Block8& a,
                                             const Block8& b_turned) {
  float rest_a[2] = {a[0], a[1]}, rest_b[2] = {b_turned[0], b_turned[1]};
  uint32_t left[kPieces][4] = {}, right[kPieces][2];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      left[piece][2 * c] = take_piece(rest_a[c]);
      right[piece][c] = take_piece(rest_b[c]);
    }
  float sums[4] = {};
#pragma unroll
  for (int order = kPieces - 1; order >= 0; --order)  // small terms first
#pragma unroll
    for (int piece = 0; piece <= order; ++piece)
      mma_tf32(sums, left[piece], right[order - piece], sums);
  result[0] = sums[0];
  result[1] = sums[1];
}

// (I + L)^-1 of a block on the diagonal of 8 x 8 numbers, L zero on and above the diagonal, and the same turned. Of blocks of 2 it
// is known; the inverses U and W of two neighbours make that of both, [U, 0; -W F U, W], F being what L has below U.
template <int kPieces>
struct Inverse8 {
  Block8 own, turned;

  __device__ __forceinline__ explicit Inverse8(const Block8& L) {
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const float below = __shfl_down_sync(kAllLanes, L[0], 4);  // of row g + 1
    own[0] = g == 2 * q ? 1.f : g == 2 * q + 1 ? -L[0] : 0.f;
    own[1] = g == 2 * q + 1 ? 1.f : 0.f;
    turned[0] = g == 2 * q ? 1.f : 0.f;
    turned[1] = g == 2 * q + 1 ? 1.f : g == 2 * q ? -below : 0.f;
    const bool same_four = g / 4 == q / 2, same_two = g / 2 == q;
    join(L, same_four && !same_two);
    join(L, !same_four);
  }

 private:
  // F: of L what `in_F` says.
  __device__ __forceinline__ void join(const Block8& L, bool in_F) {
    const Block8 F = {in_F ? L[0] : 0.f, in_F ? L[1] : 0.f};
    Block8 FU_turned, WFU, WFU_turned;
    multiply_8x8<kPieces>(FU_turned, turned, F);
    multiply_8x8<kPieces>(WFU, own, FU_turned);
    multiply_8x8<kPieces>(WFU_turned, FU_turned, own);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      own[c] -= WFU[c];
      turned[c] -= WFU_turned[c];
    }
  }
};

// (I + L)^-1, L zero on and above the diagonal.
template <int kPieces>
__device__ __forceinline__ Sums<2> inverse_of(const Sums<2>& L) {
  const float(&upper)[4] = L.tiles[0];
  const Inverse8<kPieces> U({upper[0], upper[1]}), W({L.tiles[1][2], L.tiles[1][3]});
  Block8 FU_turned, WFU;
  multiply_8x8<kPieces>(FU_turned, U.turned, {upper[2], upper[3]});
  multiply_8x8<kPieces>(WFU, W.own, FU_turned);
  Sums<2> A;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    A.tiles[0][c] = U.own[c];
    A.tiles[0][2 + c] = -WFU[c];
    A.tiles[1][c] = 0.f;
    A.tiles[1][2 + c] = W.own[c];
  }
  return A;
}

}  // namespace linescan
