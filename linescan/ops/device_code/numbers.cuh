// Storage types on the GPU, and vectors of them as one memory access.
#pragma once

#ifndef LINESCAN_CUDA_ON_CPU
#include <cuda_fp16.h>
#endif

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/ops/device_code/cuda.cuh"

namespace linescan {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(Float16 x) {
  return __half2float(__ushort_as_half(x.bits));
}

// Rounded to nearest even; NaN stays NaN.
template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Float16 from_float<Float16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
template <>
__device__ __forceinline__ BFloat16 from_float<BFloat16>(float x) {
#ifdef LINESCAN_CUDA_ON_CPU
  return {float_to_bfloat16(x)};
#else
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#endif
}

// Element `at` of an array whose type is known at run time only.
__device__ __forceinline__ float read_as_float(const void* data, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(data)[at]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(data)[at]);
    default:
      return static_cast<const float*>(data)[at];
  }
}

// kCount numbers that one instruction moves: up to 16 bytes, at an address that is a multiple of
// the vector's size.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

}  // namespace linescan
