// Operands of product.cuh's products from matrices in shared memory ("tiles", whose rows are `stride`
// numbers apart), two neighbouring fragments of B at once, and from the sums of an earlier product.
//
// Half types go through ldmatrix: rows at multiples of 16 bytes. Strides of 8 numbers more than a
// multiple of 16 keep its eight addresses on different banks.
#pragma once

#include "linescan/ops/device_code/product.cuh"

namespace linescan {

// The sums of [16, 8 kTiles], as multiply() leaves them.
template <int kTiles>
struct Sums {
  float tiles[kTiles][4];

  __device__ __forceinline__ void scale(float factor) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) tiles[i][j] *= factor;
  }
  // A thread's own numbers, to be seen by itself or its like again: tile after tile, `step` apart.
  __device__ __forceinline__ void put(float4* to, int step) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      to[i * step] = make_float4(tiles[i][0], tiles[i][1], tiles[i][2], tiles[i][3]);
  }
  __device__ __forceinline__ void get(const float4* from, int step) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float4 tile = from[i * step];
      tiles[i][0] = tile.x;
      tiles[i][1] = tile.y;
      tiles[i][2] = tile.z;
      tiles[i][3] = tile.w;
    }
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) tiles[i][j] = 0.f;
  }
  // function(value, row 0 (g) or 1 (g + 8), column) of all of them.
  template <class Function>
  __device__ __forceinline__ Sums mapped(const Function& function) const {
    const int q = threadIdx.x % 4;
    Sums result;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        result.tiles[i][j] = function(tiles[i][j], j >> 1, 8 * i + 2 * q + (j & 1));
    return result;
  }
};

// Columns 16 k to 16 k + 15 of the sums as an operand A.
template <typename T, int kTiles>
__device__ __forceinline__ FragmentA<T> operand(const Sums<kTiles>& sums, int k) {
  FragmentA<T> a;
  a.fill([&](int row, int i) { return sums.tiles[2 * k + (i >> 1)][2 * row + (i & 1)]; });
  return a;
}

// Number i (0 .. 3, at column fragment_k(q, i)) of row 0 or 1 of an operand A.
template <typename T>
__device__ __forceinline__ float value_of(const FragmentA<T>& a, int row, int i) {
  if constexpr (sizeof(T) == 2)
    return Two<T>{a.words[row + 2 * (i >> 1)]}[i & 1];
  else
    return a.values[row][i];
}

// A[m, k] = tile[m, k]
template <typename T>
__device__ __forceinline__ void load_a(FragmentA<T>& a, const T* tile, int stride) {
  const int lane = threadIdx.x % 32;
  if constexpr (sizeof(T) == 2) {
    load_matrices(a.words, tile + (lane % 16) * stride + lane / 16 * 8);
  } else {
    const float* at = tile + lane / 4 * stride + lane % 4 * 2;
    a.fill([&](int row, int i) { return at[8 * row * stride + (i & 1) + 8 * (i >> 1)]; });
  }
}

// A[m, k] = tile[k, m]
template <typename T>
__device__ __forceinline__ void load_a_transposed(FragmentA<T>& a, const T* tile, int stride) {
  const int lane = threadIdx.x % 32;
  if constexpr (sizeof(T) == 2) {
    load_matrices_transposed(a.words,
                             tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
  } else {
    const float* at = tile + lane % 4 * 2 * stride + lane / 4;
    a.fill([&](int row, int i) { return at[((i & 1) + 8 * (i >> 1)) * stride + 8 * row]; });
  }
}

// B[k, n] = tile[n, k] for n from 0 to 15
template <typename T>
__device__ __forceinline__ void load_b_rows(FragmentB<T> (&b)[2], const T* tile, int stride) {
  const int lane = threadIdx.x % 32;
  if constexpr (sizeof(T) == 2) {
    uint32_t words[4];
    load_matrices(words, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i >> 1].words[i & 1] = words[i];
  } else {
    const float* at = tile + lane / 4 * stride + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; ++n)
      b[n].fill([&](int i) { return at[8 * n * stride + (i & 1) + 8 * (i >> 1)]; });
  }
}

// B[k, n] = tile[k, n] for n from 0 to 15
template <typename T>
__device__ __forceinline__ void load_b_columns(FragmentB<T> (&b)[2], const T* tile, int stride) {
  const int lane = threadIdx.x % 32;
  if constexpr (sizeof(T) == 2) {
    uint32_t words[4];
    load_matrices_transposed(words, tile + (lane % 16) * stride + lane / 16 * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i >> 1].words[i & 1] = words[i];
  } else {
    const float* at = tile + lane % 4 * 2 * stride + lane / 4;
#pragma unroll
    for (int n = 0; n < 2; ++n)
      b[n].fill([&](int i) { return at[((i & 1) + 8 * (i >> 1)) * stride + 8 * n]; });
  }
}

// Columns 16 n to 16 n + 15 of the sums += A B.
template <typename T, int kTiles>
__device__ __forceinline__ void multiply_add(Sums<kTiles>& sums, int n, const FragmentA<T>& a,
                                             const FragmentB<T> (&b)[2]) {
  multiply(sums.tiles[2 * n], a, b[0], sums.tiles[2 * n]);
  multiply(sums.tiles[2 * n + 1], a, b[1], sums.tiles[2 * n + 1]);
}

}  // namespace linescan
