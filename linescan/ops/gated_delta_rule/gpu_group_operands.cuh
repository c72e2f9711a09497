// What products of warp groups take and leave in a scan: between registers and panels in shared memory, and scaled by the rows of
// a chunk's record on the way.
#pragma once

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_record.cuh"

namespace linescan {

// Where a thread has its part of a group's operand A in panels of 64 rows. Found once: the products of a chain wait for every
// instruction between them.
class GroupLanes {
 public:
  __device__ __forceinline__ GroupLanes() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int row = 16 * warp + lane % 16, column_row = lane % 8 + lane / 16 * 8;
    columns_ = in_register(column_row * 64 + ((2 * warp + lane / 8 % 2) ^ column_row % 8) * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows_[i] = in_register(row * 64 + ((2 * i + lane / 16) ^ row % 8) * 8);
  }

  // Panels [64, 16 kDepth], rows as the operand has them.
  template <typename T, int kDepth>
  __device__ __forceinline__ void put_rows(const Panels<T>& panels,
                                           const FragmentA<T> (&a)[kDepth]) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) store_matrices<false>(row(panels, k), a[k].words);
  }
  template <typename T, int kDepth>
  __device__ __forceinline__ void get_rows(FragmentA<T> (&a)[kDepth],
                                           const Panels<T>& panels) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) load_matrices(a[k].words, row(panels, k));
  }
  // Panels [16 kDepth, 64], whose columns are the operand's rows.
  template <typename T, int kDepth>
  __device__ __forceinline__ void put_columns(const Panels<T>& panels,
                                              const FragmentA<T> (&a)[kDepth]) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) store_matrices<true>(column(panels, k), a[k].words);
  }
  template <typename T, int kDepth>
  __device__ __forceinline__ void get_columns(FragmentA<T> (&a)[kDepth],
                                              const Panels<T>& panels) const {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) load_matrices_transposed(a[k].words, column(panels, k));
  }

 private:
  int rows_[4], columns_;

  template <typename T>
  __device__ __forceinline__ T* row(const Panels<T>& panels, int k) const {
    return panels.data + rows_[k % 4] + k / 4 * 64 * 64;
  }
  template <typename T>
  __device__ __forceinline__ T* column(const Panels<T>& panels, int k) const {
    return panels.data + columns_ + 16 * k * 64;
  }
};

// A row of the record at the tokens of this thread's sums; read before the sums are there.
template <int kDepth>
struct TokenFactors {
  float2 of[2 * kDepth];

  TokenFactors() = default;
  template <class Tiles>
  __device__ __forceinline__ TokenFactors(const Tiles& tile, DeltaRow which) {
#pragma unroll
    for (int i = 0; i < 2 * kDepth; ++i) of[i] = tile.row(which, i / 2, i % 2);
  }
};
// -beta read_k
template <int kDepth>
__device__ __forceinline__ TokenFactors<kDepth> correction_factors(
    const TokenFactors<kDepth>& beta, const TokenFactors<kDepth>& read_k) {
  TokenFactors<kDepth> factors;
#pragma unroll
  for (int i = 0; i < 2 * kDepth; ++i)
    factors.of[i] = {-beta.of[i].x * read_k.of[i].x, -beta.of[i].y * read_k.of[i].y};
  return factors;
}

template <typename T, int kTiles>
__device__ __forceinline__ void round_sums(FragmentA<T> (&to)[kTiles / 2],
                                           const Sums<kTiles>& sums) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) to[k] = operand<T>(sums, k);
}
// to = (factors o X)^T + more, from X^T.
template <typename T, int kDepth>
__device__ __forceinline__ void round_scaled(FragmentA<T> (&to)[kDepth], const Sums<2 * kDepth>& x,
                                             const TokenFactors<kDepth>& factors) {
#pragma unroll
  for (int i = 0; i < 2 * kDepth; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      to[i / 2].words[2 * (i % 2) + r] = pair_from_floats<T>(
          factors.of[i].x * x.tiles[i][2 * r], factors.of[i].y * x.tiles[i][2 * r + 1]);
}
template <typename T, int kDepth>
__device__ __forceinline__ void round_scaled(FragmentA<T> (&to)[kDepth], const Sums<2 * kDepth>& x,
                                             const TokenFactors<kDepth>& factors,
                                             const Sums<2 * kDepth>& more) {
#pragma unroll
  for (int i = 0; i < 2 * kDepth; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      to[i / 2].words[2 * (i % 2) + r] = pair_from_floats<T>(
          fmaf(factors.of[i].x, x.tiles[i][2 * r], more.tiles[i][2 * r]),
          fmaf(factors.of[i].y, x.tiles[i][2 * r + 1], more.tiles[i][2 * r + 1]));
}
// (factors o X)^T from X^T, in place and from an operand.
template <int kDepth>
__device__ __forceinline__ void scale_tokens(Sums<2 * kDepth>& x,
                                             const TokenFactors<kDepth>& factors) {
#pragma unroll
  for (int i = 0; i < 2 * kDepth; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      x.tiles[i][2 * r] *= factors.of[i].x;
      x.tiles[i][2 * r + 1] *= factors.of[i].y;
    }
}
template <typename T, int kDepth>
__device__ __forceinline__ Sums<2 * kDepth> scaled_tokens(const FragmentA<T> (&x)[kDepth],
                                                          const TokenFactors<kDepth>& factors) {
  Sums<2 * kDepth> scaled;
#pragma unroll
  for (int i = 0; i < 2 * kDepth; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      scaled.tiles[i][2 * r] = factors.of[i].x * value_of(x[i / 2], r, 2 * (i % 2));
      scaled.tiles[i][2 * r + 1] = factors.of[i].y * value_of(x[i / 2], r, 2 * (i % 2) + 1);
    }
  return scaled;
}

}  // namespace linescan
