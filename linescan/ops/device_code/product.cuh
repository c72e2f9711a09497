// Small matrix products of one warp on the tensor cores, for every storage type with one interface:
// d [16, 8] = A [16, 16] B [16, 8] + c. Lane 4 g + q holds of A rows g and g + 8, of B column g, each at
// the four k of `fragment_k`; of c and d rows g, g + 8 at columns 2q, 2q + 1.
//
// Half types are exact products with float32 sums. float32 numbers are cut into three tf32 pieces of
// eleven bits; the six leading products keep the error near that of float32 arithmetic.
#pragma once

#include "linescan/ops/device_code/numbers.cuh"

namespace linescan {

__device__ __forceinline__ int fragment_k(int q, int i) { return 2 * q + (i & 1) + 8 * (i >> 1); }

// ---- Half types: two numbers a register ----------------------------------------------------------

template <typename T>
struct FragmentA {
  uint32_t words[4];

  // value(row, k) for row 0 (g) and 1 (g + 8) and this lane's k numbers 0 .. 3.
  template <class Value>
  __device__ __forceinline__ void fill(const Value& value) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = pair_from_floats<T>(value(i & 1, 2 * (i >> 1)), value(i & 1, 2 * (i >> 1) + 1));
  }
};
template <typename T>
struct FragmentB {
  uint32_t words[2];

  template <class Value>
  __device__ __forceinline__ void fill(const Value& value) {
#pragma unroll
    for (int i = 0; i < 2; ++i) words[i] = pair_from_floats<T>(value(2 * i), value(2 * i + 1));
  }
};

__device__ __forceinline__ void multiply(float (&d)[4], const FragmentA<BFloat16>& a,
                                         const FragmentB<BFloat16>& b, const float (&c)[4]) {
  mma_bf16(d, a.words, b.words, c);
}
__device__ __forceinline__ void multiply(float (&d)[4], const FragmentA<Float16>& a,
                                         const FragmentB<Float16>& b, const float (&c)[4]) {
  mma_f16(d, a.words, b.words, c);
}
// Of depth 8: the first two words of A's lanes, one of B's.
__device__ __forceinline__ void multiply_half(float (&d)[4], const FragmentA<BFloat16>& a,
                                              uint32_t b, const float (&c)[4]) {
  mma_bf16_half(d, a.words, b, c);
}
__device__ __forceinline__ void multiply_half(float (&d)[4], const FragmentA<Float16>& a,
                                              uint32_t b, const float (&c)[4]) {
  mma_f16_half(d, a.words, b, c);
}

// ---- float32: pieces ---------------------------------------------------------------------------

// The leading eleven bits of x; what is left is exact in float32.
__device__ __forceinline__ uint32_t take_piece(float& x) {
  const uint32_t piece = __float_as_uint(x) & 0xFFFFE000u;
  x -= __uint_as_float(piece);
  return piece;
}

template <>
struct FragmentA<float> {
  float values[2][4];  // [row, k]

  template <class Value>
  __device__ __forceinline__ void fill(const Value& value) {
#pragma unroll
    for (int row = 0; row < 2; ++row)
#pragma unroll
      for (int k = 0; k < 4; ++k) values[row][k] = value(row, k);
  }
};
template <>
struct FragmentB<float> {
  float values[4];

  template <class Value>
  __device__ __forceinline__ void fill(const Value& value) {
#pragma unroll
    for (int k = 0; k < 4; ++k) values[k] = value(k);
  }
};

// Two tf32 products of depth 8: the first takes a lane's k numbers 0 and 1, the second 2 and 3. Fewer than
// three pieces keep 11 bits each.
template <int kPieces = 3>
__device__ __forceinline__ void multiply(float (&d)[4], const FragmentA<float>& a,
                                         const FragmentB<float>& b, const float (&c)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = c[i];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if constexpr (kPieces == 1) {  // the instruction leaves out what is behind the first piece
      uint32_t left[4], right[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) left[i] = __float_as_uint(a.values[i & 1][2 * half + (i >> 1)]);
#pragma unroll
      for (int i = 0; i < 2; ++i) right[i] = __float_as_uint(b.values[2 * half + i]);
      mma_tf32(d, left, right, d);
    } else {
      float rest_a[4], rest_b[2];
#pragma unroll
      for (int i = 0; i < 4; ++i) rest_a[i] = a.values[i & 1][2 * half + (i >> 1)];
#pragma unroll
      for (int i = 0; i < 2; ++i) rest_b[i] = b.values[2 * half + i];
      uint32_t left[kPieces][4], right[kPieces][2];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
        for (int i = 0; i < 4; ++i) left[piece][i] = take_piece(rest_a[i]);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
        for (int i = 0; i < 2; ++i) right[piece][i] = take_piece(rest_b[i]);
#pragma unroll
      for (int order = kPieces - 1; order >= 0; --order)  // small terms first
#pragma unroll
        for (int piece = 0; piece <= order; ++piece)
          mma_tf32(d, left[piece], right[order - piece], d);
    }
  }
}

}  // namespace linescan
