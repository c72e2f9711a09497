// Storage types on the GPU, and vectors of them as one memory access.
#pragma once

#include <cstdint>
#include <type_traits>

#include "linescan/base/dtype.h"
#include "linescan/ops/device_code/cuda.cuh"

namespace linescan {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <typename T>
inline constexpr DType kDTypeOf = std::is_same_v<T, BFloat16>  ? DType::kBFloat16
                                  : std::is_same_v<T, Float16> ? DType::kFloat16
                                                               : DType::kFloat32;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(BFloat16 x) {
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
}
__device__ __forceinline__ float to_float(Float16 x) {
#ifdef LINESCAN_CUDA_ON_CPU
  return float16_to_float(x.bits);
#else
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#endif
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
#ifdef LINESCAN_CUDA_ON_CPU
  return {float_to_float16(x)};
#else
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#endif
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

// Two neighbours in memory, as one word: of low and high half.
template <typename T>
__device__ __forceinline__ uint32_t pair_from_floats(float low, float high) {
#ifdef LINESCAN_CUDA_ON_CPU
  return from_float<T>(low).bits | uint32_t{from_float<T>(high).bits} << 16;
#else
  uint32_t bits;
  if constexpr (std::is_same_v<T, BFloat16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
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

__device__ __forceinline__ void write_as(void* data, DType dtype, int64_t at, float x) {
  switch (dtype) {
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[at] = from_float<BFloat16>(x);
      return;
    case DType::kFloat16:
      static_cast<Float16*>(data)[at] = from_float<Float16>(x);
      return;
    default:
      static_cast<float*>(data)[at] = x;
  }
}

// kCount numbers that one instruction moves: up to 16 bytes, at an address that is a multiple of
// the vector's size.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T values[kCount];
};

// Two neighbouring numbers as they lie in memory, aligned: one word of half types.
template <typename T>
struct Two {
  uint32_t word;

  __device__ __forceinline__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, BFloat16>)
      return __uint_as_float(i == 0 ? word << 16 : word & 0xFFFF0000u);
    else
      return to_float(T{static_cast<uint16_t>(i == 0 ? word : word >> 16)});
  }
};
template <>
struct Two<float> {
  float2 values;

  __device__ __forceinline__ float operator[](int i) const { return i == 0 ? values.x : values.y; }
};

template <typename T>
__device__ __forceinline__ Two<T> two_of(float first, float second) {
  if constexpr (sizeof(T) == 2)
    return {pair_from_floats<T>(first, second)};
  else
    return {make_float2(first, second)};
}

// Reads them through the read-only cache.
template <typename T>
__device__ __forceinline__ Two<T> read_two(const T* at) {
  if constexpr (sizeof(T) == 2)
    return {__ldg(reinterpret_cast<const unsigned*>(at))};
  else
    return {__ldg(reinterpret_cast<const float2*>(at))};
}

}  // namespace linescan
