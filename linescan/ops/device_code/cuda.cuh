// What kernels are written with: CUDA's own words, and the few of ours that the compiler does not
// have. tests/support/cuda_on_cpu.h gives the same words a meaning on the CPU, so that the kernels
// are judged where there is no GPU; whatever a kernel uses beyond plain CUDA C++ belongs here,
// but for products of warp groups (group_product.cuh).
#pragma once

#ifdef LINESCAN_CUDA_ON_CPU  // defined, with everything below, by tests/support/cuda_on_cpu.h
#else

#include <cuda_runtime.h>

#include <cstdint>

#include "linescan/ops/device_code/cuda_error.h"
#include "linescan/ops/gpu_stream.h"

namespace linescan {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

// 2^x and log2(x) of the special-function units: 2 ulp; subnormal results are zero.
__device__ __forceinline__ float exp2_approx(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float log2_approx(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float reciprocal_approx(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// base + a * b bytes, in one instruction.
template <typename T>
__device__ __forceinline__ T* offset_bytes(T* base, int a, int b) {
  T* result;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(result) : "r"(a), "r"(b), "l"(base));
  return result;
}
// The assembler does not see through a shuffle: it keeps what one gives, where it would compute a number anew
// wherever it is used, or ask the hardware again for the thread's index. By all threads of the warp.
//
// A number that they have in common; it and what follows from it are kept in registers of the whole warp, where products of
// warp groups and copies in bulk want their addresses.
template <typename T>
__device__ __forceinline__ T uniform(T number) {
  return __shfl_sync(kAllLanes, number, 0);
}
__device__ __forceinline__ void keep(int& number) { number = uniform(number); }
// A lane's own number, and a lane's address in shared memory.
__device__ __forceinline__ unsigned keep_own(unsigned number) {
  return __shfl_sync(kAllLanes, number, static_cast<int>(threadIdx.x) % 32);
}
template <typename T>
__device__ __forceinline__ T* keep_shared(T* address) {
  return static_cast<T*>(
      __cvta_shared_to_generic(keep_own(static_cast<unsigned>(__cvta_generic_to_shared(address)))));
}

// c += a b, and c *= a, where `yes`: in place, where a condition in C++ becomes copies that are chosen from.
__device__ __forceinline__ void fma_if(bool yes, float a, float b, float& c) {
  asm("{\n.reg .pred p;\nsetp.ne.s32 p, %3, 0;\n@p fma.rn.f32 %0, %1, %2, %0;\n}"
      : "+f"(c)
      : "f"(a), "f"(b), "r"(static_cast<int>(yes)));
}
__device__ __forceinline__ void multiply_if(bool yes, float a, float& c) {
  asm("{\n.reg .pred p;\nsetp.ne.s32 p, %2, 0;\n@p mul.f32 %0, %0, %1;\n}"
      : "+f"(c)
      : "f"(a), "r"(static_cast<int>(yes)));
}
// *at = value where `yes`, in shared memory: without a branch, at which everything under way is waited for.
__device__ __forceinline__ void store_shared_if(bool yes, float2* at, float2 value) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.s32 p, %0, 0;\n@p st.shared.v2.f32 [%1], {%2, %3};\n}" ::"r"(
          static_cast<int>(yes)),
      "r"(static_cast<unsigned>(__cvta_generic_to_shared(at))), "f"(value.x), "f"(value.y)
      : "memory");
}

// Barriers 1 to 15 of a block, for `threads` threads, whole warps, of which some wait and the others only
// arrive; what these wrote before is then visible to those that waited.
__device__ __forceinline__ void barrier_wait(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Not before `computed` is there: the assembler moves a wait up past what does not depend on it, and whoever is waited for in turn
// would wait for that as well. No arithmetic makes the NaN that it is compared with.
__device__ __forceinline__ void barrier_wait_behind(float computed, int barrier, int threads) {
  barrier_wait(__float_as_int(computed) == 0x7FC0DEAD ? 0 : barrier, threads);
}
__device__ __forceinline__ void barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// A signal in shared memory that one thread gives turn by turn to any number of waiting ones: what the giver's warp wrote
// before (behind a __syncwarp()) is then visible to them. Begun by one thread; the block meets before anything else.
// No turn is given before everybody has waited for the last but one.
__device__ __forceinline__ void begin_signal(uint64_t* signal) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(signal)))
               : "memory");
}
__device__ __forceinline__ void give_signal(uint64_t* signal) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(signal)))
               : "memory");
}
// Of turn number `turn`, which counts from 0.
__device__ __forceinline__ void wait_signal(const uint64_t* signal, int turn) {
  unsigned given = 0;
  while (!given)
    asm volatile(
#if __CUDA_ARCH__ >= 900
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#else
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
#endif
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(given)
        : "r"(static_cast<unsigned>(__cvta_generic_to_shared(signal))), "r"(turn & 1)
        : "memory");
}

// See copies.cuh for the copies that these close and wait for.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// x in a register from here on: values that live through a loop without a place for them are otherwise read
// anew from local memory at every use behind it.
template <typename T>
__device__ __forceinline__ T in_register(T x) {
  if constexpr (sizeof(T) == 8)
    asm volatile("" : "+l"(x));
  else if constexpr (std::is_same_v<T, float>)
    asm volatile("" : "+f"(x));
  else
    asm volatile("" : "+r"(x));
  return x;
}

// threadIdx.x, read anew: no register is kept for it.
__device__ __forceinline__ unsigned read_thread() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// d = A B + c on the tensor cores: A [16, k], B [k, 8], c and d [16, 8] spread over the warp as PTX defines.
// Lane 4 g + q holds rows g, g + 8 of A, column g of B, and of c columns 2q, 2q + 1 of rows g, g + 8.
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2], const float (&c)[4]) {  // k = 16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2], const float (&c)[4]) {  // k = 16
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void mma_bf16_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b,
                                              const float (&c)[4]) {  // k = 8, of a two words
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
      "{%4,%5}, {%6}, {%7,%8,%9,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void mma_f16_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b,
                                             const float (&c)[4]) {  // k = 8, of a two words
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
      "{%4,%5}, {%6}, {%7,%8,%9,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4],
                                         const uint32_t (&b)[2], const float (&c)[4]) {  // k = 8
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}
// Transposes an 8 x 8 matrix of 16-bit numbers; lane 4 g + q holds row g, columns 2q and 2q + 1.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t rows) {
  uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(rows));
  return result;
}

// Four 8 x 8 matrices of 16-bit numbers from shared memory: lanes 8 i to 8 i + 7 give the addresses of the
// rows of matrix i, multiples of 16 bytes. Lane 4 g + q gets of each matrix row g, columns 2q and 2q + 1; the
// transposed way column g, rows 2q and 2q + 1.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(row)))
               : "memory");
}

// The block's dynamic shared memory, 128-byte aligned.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char linescan_shared[];
  return linescan_shared;
}

// One-dimensional grids only: y and z end at 65 535 blocks.
struct LaunchShape {
  int64_t grid;
  int block;
  int64_t shared_bytes = 0;
};

// Throws DeviceError with the CUDA error's own words.
inline void check_cuda(cudaError_t error, const char* what, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  if (error != cudaSuccess)
    throw_cuda_error(what, cudaGetErrorName(error), cudaGetErrorString(error), file, line);
}

// Launches kernel(args...); `what` names it in errors. An empty grid is legal and does nothing.
template <typename... Parameters, typename... Args>
void launch(const char* what, void (*kernel)(Parameters...), const LaunchShape& shape,
            GpuStream stream, Args&&... args) {
  if (shape.grid == 0) return;
  if (shape.grid >= int64_t{1} << 31) throw_too_many_blocks(what, shape.grid);
  if (shape.shared_bytes > 48 * 1024)  // more is granted on request only
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)),
               what);
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.grid));
  config.blockDim = dim3(static_cast<unsigned>(shape.block));
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream.handle);
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(args)...), what);
}

}  // namespace linescan

#endif  // LINESCAN_CUDA_ON_CPU
