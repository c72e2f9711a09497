// gated_delta_rule where there are many sequences with small heads: a warp walks a whole sequence of a value
// head, 16 tokens at a time, and keeps the state and everything that a chunk's tokens have to do with each other
// in registers. What the forward and the backward pass share; half types, K and V up to 32.
//
// Held transposed, as in the scans over chunks (chunk_scan.cu): S^T [32 of V, 32 of K] is two rows of Sums<4>. The sums
// of a product are the left operand of the next one, and their transposes the right one, without shared memory.
#pragma once

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_layout.h"
#include "linescan/ops/gated_delta_rule/gpu_scan.cuh"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

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

// An 8 x 8 matrix whose row g, columns 2q and 2q + 1 this lane has, turned.
__device__ __forceinline__ void turn_8x8(float (&x)[2]) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  float turned[2];
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int from = 4 * (2 * q + c) + g / 2;
    const float even = __shfl_sync(kAllLanes, x[0], from), odd = __shfl_sync(kAllLanes, x[1], from);
    turned[c] = g % 2 == 0 ? even : odd;
  }
  x[0] = turned[0];
  x[1] = turned[1];
}

// a b for 8 x 8 matrices that lie so, b turned; kPieces of tf32 each.
template <int kPieces>
__device__ __forceinline__ void multiply_8x8(float (&result)[2], const float (&a)[2],
                                             const float (&b_turned)[2]) {
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

// (I + L)^-1: the two blocks on the diagonal by substitution, a row less in every step, what is left of them by
// products. L is zero on and above the diagonal.
template <int kPieces>
__device__ __forceinline__ Sums<2> inverse_of(const Sums<2>& L) {
  const int q = threadIdx.x % 4;
  Sums<2> A = lower_blocks([](int, int, int i, int j) { return i == j ? 1.f : 0.f; });
  float(&upper)[4] = A.tiles[0];
  float(&lower)[4] = A.tiles[1];
#pragma unroll
  for (int j = 0; j < 7; ++j) {
    const int row = 4 * j + q;
    const float of_upper = __shfl_sync(kAllLanes, L.tiles[0][j % 2], j / 2, 4);
    const float of_lower = __shfl_sync(kAllLanes, L.tiles[1][2 + j % 2], j / 2, 4);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      upper[c] = fmaf(-of_upper, __shfl_sync(kAllLanes, upper[c], row), upper[c]);
      lower[2 + c] = fmaf(-of_lower, __shfl_sync(kAllLanes, lower[2 + c], row), lower[2 + c]);
    }
  }
  float turned[2] = {upper[0], upper[1]}, product[2];
  turn_8x8(turned);
  multiply_8x8<kPieces>(product, {L.tiles[0][2], L.tiles[0][3]}, turned);
  turn_8x8(product);
  multiply_8x8<kPieces>(turned, {lower[2], lower[3]}, product);
  upper[2] = -turned[0];
  upper[3] = -turned[1];
  return A;
}

// ---- A warp's shared memory ------------------------------------------------------------------------

// Rows of floats, one number a token. kToken.. means what DeltaRow (gpu_record.cuh) has under the same name.
enum SequenceRow {
  kOwnDecay,  // exp(g)
  kUpto,  // the product of these from the start of the token's block of 8 to the token, itself included
  kAhead,    // nk times that from behind it to the end of the block
  kSquareQ,  // |q|^2, for the norm
  kSquareK,  // |k|^2
  kTokenBeta,
  kTokenFactorQ,
  kTokenFactorK,
  kTokenReadQ,
  kTokenReadK,
  kTokenWrite,
  kGateParameters,  // not by token
  kSequenceRows
};
static_assert(kSequenceRows == DeltaLayout::kSequenceRows);

enum SequenceTile { kTileK, kTileV, kTileQ, kTileGo };

template <typename T>
struct SequenceStage {
  T* data;

  __device__ __forceinline__ T* tile(SequenceTile which) const {
    return data + which * kSequenceTile;
  }
  __device__ __forceinline__ TokenOperand<T> operand(SequenceTile which) const {
    TokenOperand<T> tokens;
    tokens.load(tile(which));
    return tokens;
  }
  __device__ __forceinline__ TokenColumns<T> columns(SequenceTile which) const {
    TokenColumns<T> tokens;
    tokens.load(tile(which));
    return tokens;
  }
  // Rounded: S in front of the chunk, and A.
  __device__ __forceinline__ uint4* kept() const {
    return reinterpret_cast<uint4*>(tile(kTileGo) + kSequenceTile);
  }
};

// Two stages of tiles, those of a backward pass with go and a rounded state; then the rows.
template <typename T, bool kBackward>
struct SequenceTiles {
  static constexpr int64_t kStageBytes = DeltaLayout::sequence_stage_bytes(kBackward);
  static constexpr int64_t kWarpBytes = DeltaLayout::sequence_warp_bytes(kBackward);
  unsigned char* stages;
  float* rows;

  __device__ __forceinline__ SequenceTiles()
      : stages(shared_memory() + threadIdx.x / 32 * kWarpBytes),
        rows(reinterpret_cast<float*>(stages + 2 * kStageBytes)) {}
  __device__ __forceinline__ SequenceStage<T> stage(int chunk) const {
    return {reinterpret_cast<T*>(stages + (chunk & 1) * kStageBytes)};
  }
  __device__ __forceinline__ float* scratch() const { return reinterpret_cast<float*>(stages); }
  __device__ __forceinline__ float& row(SequenceRow which, int token) const {
    return rows[which * kSequenceTokens + token];
  }
};

// A tensor [batch, length, heads, columns].
template <typename T>
struct SequenceTensor {
  DeltaRows<T> rows = {};
  int64_t step = 0;  // from token to token of a walk
  int columns = 0;

  SequenceTensor(const TensorView& view, bool reverse) {
    if (!view) return;
    rows = delta_rows<T>(view);
    // One token needs no step; rows_are_vectors() has not looked at it.
    const int64_t token = view.shape[1] > 1 ? rows.token : 0;
    step = reverse ? -token : token;
    columns = static_cast<int>(view.shape[3]);
  }
};

// The rows of a chunk's tokens, as a lane sees them: a token of either half, eight columns. kVectors: rows of all
// tensors are vectors.
template <typename T, bool kVectors>
struct SequenceRows {
  const SequenceTensor<T>& of;
  T* at = nullptr;

  __device__ __forceinline__ void start(const DeltaWalk& walk, int64_t chunk, int head) {
    at = of.rows.at(walk.batch, walk.first, head) + (chunk * kSequenceTokens + token()) * of.step +
         column();
  }
  __device__ __forceinline__ void move(int chunks) { at += chunks * kSequenceTokens * of.step; }

  // tile <- the rows, zeros where there are no tokens or columns; arrives with the copies committed next.
  __device__ __forceinline__ void fetch(std::remove_const_t<T>* tile, int tokens) const {
    std::remove_const_t<T>* const to = place_of(tile, token(), column());
    if constexpr (kVectors) {
      const int valid = column() < of.columns ? tokens - token() : 0;
      copy_async<16>(to, at, valid > 0 ? 16 : 0);
      copy_async<16>(to + 8 * kSequenceWidth, at + 8 * of.step, valid > 8 ? 16 : 0);
    } else {
#pragma unroll 1
      for (int i = 0; i < 16; ++i) {
        const int row = i / 8 * 8, c = i % 8;
        const bool valid = token() + row < tokens && column() + c < of.columns;
        to[row * kSequenceWidth + c] = valid ? at[row * of.step + c] : std::remove_const_t<T>{};
      }
    }
  }
  // The rows <- an operand [16 tokens, 32], through `tile`, which nobody reads any more.
  __device__ __forceinline__ void send(T* tile, const TokenOperand<T>& tokens_by_columns,
                                       int tokens) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2; ++k)
      store_matrices<false>(place_of(tile, lane % 16, 16 * k + lane / 16 * 8),
                            tokens_by_columns.parts[k].words);
    __syncwarp();
    const T* const from = place_of(tile, token(), column());
#pragma unroll
    for (int row = 0; row < kSequenceTokens; row += 8)
      if (token() + row < tokens) store_row(at + row * of.step, from + row * kSequenceWidth);
  }

 private:
  __device__ __forceinline__ void store_row(T* to, const T* from) const {
    if constexpr (kVectors) {
      if (column() < of.columns)
        *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
    } else {
#pragma unroll 1
      for (int c = 0; c < min(of.columns - column(), 8); ++c) to[c] = from[c];
    }
  }
  static __device__ __forceinline__ int token() { return threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int column() { return threadIdx.x % 4 * 8; }
};

// What a token's gate and beta come from, on its way while the chunk before is worked on: lanes 0 to 15 and 16 to 31
// the same.
struct SequenceGate {
  float raw = 0;
  uint32_t beta_bits = 0;
};
template <typename T>
struct SequenceGates {
  const DeltaInputs<T>& in;
  const bool& reverse;
  float* parameters;  // in shared memory: -exp(A_log) and dt_bias
  const float* g = nullptr;
  int64_t beta = 0;

  __device__ __forceinline__ void start(const DeltaWalk& walk, int64_t chunk, int head) {
    const int64_t token = chunk * kSequenceTokens + threadIdx.x % kSequenceTokens;
    g = in.g.at(walk.batch, walk.first, head) + token * step(in.g.token);
    beta = walk.batch * in.beta.batch + walk.first * in.beta.token + head * in.beta.head +
           token * step(in.beta.token);
    if (!in.A_log || threadIdx.x % 32 > 0) return;
    parameters[0] = -expf(in.A_log[head]);
    parameters[1] = in.dt_bias ? in.dt_bias[head] : 0.f;
  }
  __device__ __forceinline__ void move(int chunks) {
    g += chunks * kSequenceTokens * step(in.g.token);
    beta += chunks * kSequenceTokens * step(in.beta.token);
  }
  __device__ __forceinline__ SequenceGate fetch(int tokens) const {
    SequenceGate gate;
    if (!valid(tokens)) return gate;
    gate.raw = *g;
    gate.beta_bits = in.beta_type == DType::kFloat32
                         ? reinterpret_cast<const uint32_t*>(in.beta.data)[beta]
                         : reinterpret_cast<const uint16_t*>(in.beta.data)[beta];
    return gate;
  }
  // exp(g), and beta.
  __device__ __forceinline__ float decay_of(const SequenceGate& gate, int tokens) const {
    if (!valid(tokens)) return 1.f;
    return exp2_approx(kLog2e *
                       (in.A_log ? parameters[0] * softplus(gate.raw + parameters[1]) : gate.raw));
  }
  __device__ __forceinline__ float beta_of(const SequenceGate& gate, int tokens) const {
    if (!valid(tokens)) return 0.f;
    const float raw = in.beta_type == DType::kFloat32 ? __uint_as_float(gate.beta_bits)
                                                      : Two<T>{gate.beta_bits}[0];
    return in.sigmoid ? in.largest_beta * sigmoid(raw) : raw;
  }

 private:
  static __device__ __forceinline__ bool valid(int tokens) {
    return static_cast<int>(threadIdx.x) % kSequenceTokens < tokens;
  }
  __device__ __forceinline__ int64_t step(int64_t token) const { return reverse ? -token : token; }
};

// The chunks of a sequence, and the tokens in one: none outside of it.
struct SequenceChunks {
  int count, of_last;

  __device__ __forceinline__ explicit SequenceChunks(const DeltaWalk& walk)
      : count(static_cast<int>((walk.length + kSequenceTokens - 1) / kSequenceTokens)),
        of_last(static_cast<int>((walk.length - 1) % kSequenceTokens) + 1) {}
  __device__ __forceinline__ int tokens(int chunk) const {
    if (chunk < 0 || chunk >= count) return 0;
    return chunk + 1 == count ? of_last : kSequenceTokens;
  }
};

// ---- A chunk by itself -----------------------------------------------------------------------------

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

  // The tiles of k and, with kQueries, q have arrived. Without kInverse A is known.
  template <bool kQueries, bool kInverse = true, class Tiles>
  __device__ __forceinline__ void prepare(const Tiles& tiles, const SequenceStage<T>& stage,
                                          float own_decay, float beta, const DeltaInputs<T>& in,
                                          int tokens) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2;
    // Products over a token's block of 8, in the lane of the token.
    float upto = own_decay, ahead = __shfl_down_sync(kAllLanes, own_decay, 1, 8);
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
      tiles.row(kOwnDecay, lane) = own_decay;
      tiles.row(kUpto, lane) = upto;
      tiles.row(kAhead, lane) = nk * ahead;
      tiles.row(kTokenBeta, lane) = beta;
      tiles.row(kTokenFactorK, lane) = nk;
      // Selected, not multiplied: gates that are positive may make infinite what a missing token would get.
      tiles.row(kTokenReadK, lane) = lane < tokens ? nk * before : 0.f;
      tiles.row(kTokenWrite, lane) = lane < tokens ? nk * (lane < 8 ? ahead * second : ahead) : 0.f;
      if constexpr (kQueries) {
        const float nq = in.scale * factor(kSquareQ);
        tiles.row(kTokenFactorQ, lane) = nq;
        tiles.row(kTokenReadQ, lane) = lane < tokens ? nq * before : 0.f;
      }
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

// visit(number, place in the scratch)
template <class Visit>
__device__ __forceinline__ void for_square(Sums<4> (&state)[2], const Visit& visit) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        visit(state[m].tiles[i][j],
              (16 * m + g + 8 * (j >> 1)) * (kSequenceWidth + 1) + 8 * i + 2 * q + (j & 1));
}
// How lanes go over a state of the caller's: side by side along V or K, and row after row along the other. The state
// stands in shared memory that nobody uses, [32 of V, 33].
struct SquareWalk {
  static constexpr int kPitch = kSequenceWidth + 1;
  float* at;
  int64_t step;
  int rows, place, place_step;
  bool own;

  __device__ __forceinline__ SquareWalk(const DeltaStates& states, int64_t sequence, int head,
                                        int V, int K) {
    const int lane = threadIdx.x % 32;
    const bool along_v = states.value == 1;
    at = states.of(sequence, head) + lane * (along_v ? states.value : states.key);
    step = along_v ? states.key : states.value;
    rows = along_v ? K : V;
    place = along_v ? kPitch * lane : lane;
    place_step = along_v ? 1 : kPitch;
    own = lane < (along_v ? V : K);
  }
};

// Zero if there is none.
template <class Tiles>
__device__ __forceinline__ void load_square(Sums<4> (&state)[2], const Tiles& tiles,
                                            const DeltaStates& from, int64_t sequence, int head,
                                            int V, int K) {
  for (Sums<4>& half : state) half.clear();
  if (!from.data) return;
  SquareWalk walk(from, sequence, head, V, K);
  __syncwarp();
#pragma unroll 4
  for (int i = 0; i < kSequenceWidth; ++i, walk.place += walk.place_step, walk.at += walk.step)
    tiles.scratch()[walk.place] = walk.own && i < walk.rows ? *walk.at : 0.f;
  __syncwarp();
  for_square(state, [&](float& x, int at) { x = tiles.scratch()[at]; });
  __syncwarp();
}
template <class Tiles>
__device__ __forceinline__ void store_square(Sums<4> (&state)[2], const Tiles& tiles,
                                             const DeltaStates& to, int64_t sequence, int head,
                                             int V, int K) {
  if (!to.data) return;
  SquareWalk walk(to, sequence, head, V, K);
  __syncwarp();
  for_square(state, [&](float x, int at) { tiles.scratch()[at] = x; });
  __syncwarp();
  if (walk.own) {
#pragma unroll 4
    for (int i = 0; i < walk.rows; ++i, walk.place += walk.place_step, walk.at += walk.step)
      *walk.at = tiles.scratch()[walk.place];
  }
  __syncwarp();
}

}  // namespace linescan
