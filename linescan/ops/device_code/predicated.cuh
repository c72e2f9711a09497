// Stores to global memory, and loads from there, under a condition, without a branch: everything under way is waited for at one, and
// many of them take long to compile (0058).
#pragma once

#include "linescan/ops/device_code/numbers.cuh"

namespace linescan {

// *at = value where `yes`, for numbers of two, four and eight bytes. An address that comes from offset_bytes may be in shared
// memory as far as the compiler knows; such a store keeps loads from there from being moved.
template <typename T>
__device__ __forceinline__ void store_if(bool yes, T* at, T value) {
#ifdef LINESCAN_CUDA_ON_CPU
  if (yes) *at = value;
#else
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);
  const auto address = __cvta_generic_to_global(at);
  const int wanted = yes;
  if constexpr (sizeof(T) == 2) {
    uint16_t bits;
    memcpy(&bits, &value, sizeof bits);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.b16 [%1], %2;\n}" ::"r"(wanted),
        "l"(address), "h"(bits)
        : "memory");
  } else if constexpr (sizeof(T) == 4) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n}" ::"r"(wanted),
        "l"(address), "r"(bits)
        : "memory");
  } else {
    uint32_t bits[2];
    memcpy(bits, &value, sizeof bits);
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.global.v2.b32 [%1], {%2, %3};\n}" ::"r"(
            wanted),
        "l"(address), "r"(bits[0]), "r"(bits[1])
        : "memory");
  }
#endif
}

// *at where `yes`, else zero.
__device__ __forceinline__ float load_if(bool yes, const float* at) {
#ifdef LINESCAN_CUDA_ON_CPU
  return yes ? *at : 0.0f;
#else
  const auto address = __cvta_generic_to_global(at);
  const int wanted = yes;
  float value;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %1, 0;\nmov.f32 %0, 0f00000000;\n@p ld.global.f32 %0, "
      "[%2];\n}"
      : "=&f"(value)
      : "r"(wanted), "l"(address)
      : "memory");
  return value;
#endif
}

}  // namespace linescan
