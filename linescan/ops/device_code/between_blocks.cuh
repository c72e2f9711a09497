// What blocks of a launch tell each other, in global memory that starts as zeros and ends as zeros.
#pragma once

#include "linescan/ops/device_code/cuda.cuh"

namespace linescan {

#ifndef LINESCAN_CUDA_ON_CPU  // otherwise in tests/support/cuda_on_cpu.h

// A number of its own for each of `count` that draw, in the order in which they do.
__device__ __forceinline__ unsigned draw_number(unsigned* drawn, unsigned count) {
  return atomicInc(drawn, count - 1);
}

// By one thread of a block: whatever the block wrote and then met behind is visible to the thread that waits, and to whoever
// meets that one behind it. Nobody waits but for a block that has started, and for what that does without waiting.
__device__ __forceinline__ void raise_flag(unsigned* flag) {
  __threadfence();
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ __forceinline__ void wait_flag(unsigned* flag) {
  unsigned raised = 0;
  while (!raised)
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
  __threadfence();
  *flag = 0;
}

// Zeros, behind everything on the stream so far.
inline void fill_zeros(const char* what, void* data, int64_t bytes, GpuStream stream) {
  check_cuda(cudaMemsetAsync(data, 0, static_cast<std::size_t>(bytes),
                             static_cast<cudaStream_t>(stream.handle)),
             what);
}

#endif

}  // namespace linescan
