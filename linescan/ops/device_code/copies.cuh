// Copies from global to shared memory that are under way while the block computes.
#pragma once

#include "linescan/ops/device_code/cuda.cuh"

namespace linescan {

// kBytes (4, 8 or 16) arrive at `shared`; both addresses are multiples of kBytes.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
#ifdef LINESCAN_CUDA_ON_CPU
  std::memcpy(shared, global, kBytes);
#else
  // A tile is a part of a 128-byte line in the shortest case; its neighbour is wanted next.
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2;" ::"r"(to), "l"(global),
                 "n"(kBytes)
                 : "memory");
#endif
}

// kBytes (4, 8 or 16) arrive at `shared`: `valid` of them from `global`, the rest zero. Both addresses
// are multiples of kBytes; nothing behind the valid bytes is read.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* shared, const void* global, int valid) {
#ifdef LINESCAN_CUDA_ON_CPU
  if (valid > 0) std::memcpy(shared, global, valid);  // otherwise there may be no address
  std::memset(static_cast<unsigned char*>(shared) + valid, 0, kBytes - valid);
#else
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(global),
                 "r"(valid)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %3, %2;" ::"r"(to), "l"(global),
                 "r"(valid), "n"(kBytes)
                 : "memory");
#endif
}

}  // namespace linescan
