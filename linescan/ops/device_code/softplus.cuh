// softplus and sigmoid on the GPU, accurate for very negative arguments too.
#pragma once

#include "linescan/ops/device_code/cuda.cuh"

namespace linescan {

inline constexpr float kLog2e = 1.44269504f;
inline constexpr float kLn2 = 0.693147181f;

// log(1 + e) for 0 <= e <= 1. log(1 + e) / e is a polynomial fitted to 3e-8, so that the relative error
// stays small for tiny e, where log2 of the rounded 1 + e would lose it; a quotient or a logarithm
// would wait for the special-function units, which are the first to be busy in a scan.
__device__ __forceinline__ float log1p_unit(float e) {
  float p = 0.00523268292f;
  p = fmaf(p, e, -0.0295051932f);
  p = fmaf(p, e, 0.0782258809f);
  p = fmaf(p, e, -0.136632398f);
  p = fmaf(p, e, 0.191060036f);
  p = fmaf(p, e, -0.24842982f);
  p = fmaf(p, e, 0.333190978f);
  p = fmaf(p, e, -0.499994934f);
  p = fmaf(p, e, 0.99999994f);
  return p * e;
}

// softplus(x) = log(1 + exp(x)). Above 20, where the definition takes x itself, the sum rounds to x.
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1p_unit(exp2_approx(-fabsf(x) * kLog2e));
}

// softplus with an absolute error of 1e-7: half of the work, for arguments that are rounded to half
// types anyway.
__device__ __forceinline__ float softplus_short(float x) {
  return fmaf(kLn2, log2_approx(1.0f + exp2_approx(-fabsf(x) * kLog2e)), fmaxf(x, 0.0f));
}

// Of data of type T.
template <typename T>
__device__ __forceinline__ float softplus_of(float x) {
  return sizeof(T) == 2 ? softplus_short(x) : softplus(x);
}

// softplus_short of x ln 2, in units of ln 2: log2(1 + 2^x).
__device__ __forceinline__ float softplus_base2(float x) {
  return log2_approx(1.0f + exp2_approx(-fabsf(x))) + fmaxf(x, 0.0f);
}

// softplus or softplus_short, and the derivative, which is sigmoid(x) (and rounds to 1 above 20).
template <bool kShort>
__device__ __forceinline__ float softplus_and_slope(float x, float& slope) {
  const float e = exp2_approx(-fabsf(x) * kLog2e);
  slope = reciprocal_approx(1.0f + e) * (x < 0 ? e : 1.0f);
  const float log1p = kShort ? kLn2 * log2_approx(1.0f + e) : log1p_unit(e);
  return fmaxf(x, 0.0f) + log1p;
}

__device__ __forceinline__ float sigmoid(float x) {
  return reciprocal_approx(1.0f + exp2_approx(-x * kLog2e));
}

// The derivative of softplus, by definition 1 above 20: there sigmoid(x) rounds to it.
__device__ __forceinline__ float softplus_slope(float x) { return sigmoid(x); }

}  // namespace linescan
