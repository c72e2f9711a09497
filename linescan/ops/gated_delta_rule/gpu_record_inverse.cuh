// The inverse of I + L that a record has, L a lower triangle without its diagonal: 16 x 16 blocks on the diagonal, a block a
// warp, in float32; those below them by products, a column of blocks a warp.
#pragma once

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/device_code/tile_product.cuh"

namespace linescan {

// A tile in shared memory for those that take panels (device_code/group_product.cuh) as well.
template <typename T, int kStride>
struct RowTile {
  T* data;

  __device__ __forceinline__ T* at(int row, int column) const {
    return data + row * kStride + column;
  }
};
template <class Matrix>
using NumberOf = std::remove_pointer_t<decltype(std::declval<Matrix>().at(0, 0))>;

// Block number `which` of L on the diagonal, 16 x 16, <- the inverse of I + L there; and rounded, to `inverse`. By a warp: halves of
// it by substitution, a column a thread, then what lies between them, -B^-1 C A^-1. `lane`: the thread's.
template <int kStride, class Matrix>
__device__ __forceinline__ void invert_block(float* L, const Matrix& inverse, int which, int lane) {
  using T = NumberOf<Matrix>;
  float* const block = L + 16 * which * (kStride + 1);
  const auto fours = [](float(&to)[8], const float* from) {
#pragma unroll
    for (int k = 0; k < 8; k += 4)
      *reinterpret_cast<float4*>(to + k) = *reinterpret_cast<const float4*>(from + k);
  };
  {
    float* const half =
        block + lane / 8 % 2 * 8 * (kStride + 1);  // the other lanes do the same again
    const int column = lane % 8;
    float x[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = i == column ? 1.f : 0.f;
#pragma unroll
      for (int k = 0; k < i; k += 4) {
        const auto l = *reinterpret_cast<const float4*>(half + i * kStride + k);
        x[i] = fmaf(-l.x, x[k], x[i]);
        if (k + 1 < i) x[i] = fmaf(-l.y, x[k + 1], x[i]);
        if (k + 2 < i) x[i] = fmaf(-l.z, x[k + 2], x[i]);
        if (k + 3 < i) x[i] = fmaf(-l.w, x[k + 3], x[i]);
      }
    }
    __syncwarp();
    if (lane < 16)
#pragma unroll
      for (int i = 0; i < 8; ++i) half[i * kStride + column] = x[i];
    __syncwarp();
  }
  // Two neighbours of the block's lower left quarter, [8 + row, column].
  const int row = lane / 4, column = lane % 4 * 2;
  float left[8];
  fours(left, block + (8 + row) * kStride);
  float2 sum = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const auto right = *reinterpret_cast<const float2*>(block + k * kStride + column);
    sum.x = fmaf(left[k], right.x, sum.x);
    sum.y = fmaf(left[k], right.y, sum.y);
  }
  fours(left, block + (8 + row) * kStride + 8);
  float2 between = {};
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int from = 4 * k + lane % 4;
    between.x = fmaf(-left[k], __shfl_sync(kAllLanes, sum.x, from), between.x);
    between.y = fmaf(-left[k], __shfl_sync(kAllLanes, sum.y, from), between.y);
  }
  __syncwarp();  // C has been read
  *reinterpret_cast<float2*>(block + (8 + row) * kStride + column) = between;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int row = lane / 2, column = lane % 2 * 4 + 8 * n;
    const auto four = *reinterpret_cast<const float4*>(block + row * kStride + column);
    T* const to = inverse.at(16 * which + row, 16 * which + column);
    if constexpr (sizeof(T) == 2)
      *reinterpret_cast<uint2*>(to) =
          make_uint2(pair_from_floats<T>(four.x, four.y), pair_from_floats<T>(four.z, four.w));
    else
      *reinterpret_cast<float4*>(to) = four;
  }
}

// inverse <- the blocks of X = (I + L)^-1 below the diagonal, rounded; the blocks on it stand in L's place. Warp j has column j:
// X[i, j] = -X[i, i] (L[i, j] X[j, j] + .. + L[i, i - 1] X[i - 1, j]). As soon as a block is there, it is
// multiplied into all the sums below it. Everything is turned, so that what one product leaves is the next one's operand as it
// stands in registers. The last warp has nothing to do.
template <int kChunk, int kStride, int kNumberPieces, class Matrix>
__device__ __forceinline__ void solve_below(const float* L, const Matrix& inverse, int j) {
  using T = NumberOf<Matrix>;
  constexpr int kMost = kChunk / 16 - 1;  // blocks below the diagonal
  if constexpr (kMost > 0) {
    const int lane = threadIdx.x % 32, count = kMost - j;
    if (count == 0) return;
    const float* const column = L + 16 * j * (kStride + 1);  // X[j, j]
    FragmentA<float> x;                                      // X[j + n, j] turned
    load_a_transposed(x, column, kStride);
    const auto add = [](Sums<2>& sums, const FragmentA<float>& a, const float* block) {
      FragmentB<float> b[2];
      load_b_rows(b, block, kStride);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile)
        multiply<kNumberPieces>(sums.tiles[tile], a, b[tile], sums.tiles[tile]);
    };
    Sums<2> below[kMost];
#pragma unroll
    for (int n = 0; n < kMost; ++n) below[n].clear();
#pragma unroll
    for (int n = 0; n < kMost; ++n) {
      if (n >= count) break;
#pragma unroll
      for (int m = n; m < kMost; ++m)
        if (m < count) add(below[m], x, column + 16 * ((m + 1) * kStride + n));
      Sums<2> sums;
      sums.clear();
      add(sums, operand<float>(below[n], 0), column + 16 * (n + 1) * (kStride + 1));
      sums.scale(-1.f);
      x = operand<float>(sums, 0);
      const int row = 16 * (j + n + 1);
      if constexpr (sizeof(T) == 2) {
        // As an operand A the block's eights of columns are those of its transpose's rows.
        store_matrices<true>(inverse.at(row + lane % 8 + lane / 16 * 8, 16 * j + lane / 8 % 2 * 8),
                             operand<T>(sums, 0).words);
      } else {
#pragma unroll
        for (int tile = 0; tile < 2; ++tile)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            *inverse.at(row + 8 * tile + lane % 4 * 2 + i % 2, 16 * j + lane / 4 + i / 2 * 8) =
                from_float<T>(sums.tiles[tile][i]);
      }
    }
  }
}

}  // namespace linescan
