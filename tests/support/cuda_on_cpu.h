// Runs the CUDA kernels on the CPU, one block after another, one fiber a thread, so that their logic
// is judged where there is no GPU (and under the address sanitizer). A .cu file compiled as C++ with
// this header included first and LINESCAN_CUDA_ON_CPU defined finds here what cuda.cuh would give.
//
// Threads run until they meet a barrier or exchange values within their warp. Every second launch
// runs the lanes in reverse order, so that a missing barrier shows as a result that changes.
// Shared memory starts as NaN in every block. A barrier that not all threads reach is reported.
//
// Not modelled: memory ordering between blocks, divergence, timing.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include "linescan/base/half.h"
#include "linescan/ops/gpu_stream.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(bytes) alignas(bytes)
#define __constant__ static
#define __grid_constant__

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

using std::max;
using std::min;

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
template <typename T>
T __ldg(const T* address) {
  return *address;
}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((uint64_t{a} * b) >> 32);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selectors) {
  const uint64_t both = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(both >> (selectors >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
  return result;
}
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline void __threadfence() {}

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace linescan {

inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

namespace on_cpu {

inline constexpr int kLargestExchange = 64;  // bytes that a lane may offer its warp at once

// Waits until all threads of the block have called it.
void block_barrier();
// Barriers 1 to 15: waits until `threads` threads have called it; without `waits` it only arrives.
void named_barrier(int barrier, int threads, bool waits);
// A signal in shared memory: turns given, and waiting until so many are.
void begin_signal(uint64_t* signal);
void give_signal(uint64_t* signal);
void wait_signal(const uint64_t* signal, int turn);
// Raised once, and waited for once by a block behind.
void raise_flag(unsigned* flag);
void wait_flag(unsigned* flag);
// Where the lane puts what it offers its warp; then it waits for all lanes. What lane i offered is at i *
// kLargestExchange behind the address that meet_warp() returns until the warp's next exchange but one.
unsigned char* place_of_offer();
const unsigned char* meet_warp();
unsigned char* dynamic_shared_memory();
void run_grid(const char* what, int64_t grid, int block, int64_t shared_bytes,
              void (*thread)(void* context), void* context);

inline int lane() { return static_cast<int>(threadIdx.x % 32); }

// What every lane of the warp offered.
template <typename T>
struct Offers {
  static_assert(sizeof(T) <= kLargestExchange);
  const unsigned char* first;

  const T& operator[](int lane) const {
    return *reinterpret_cast<const T*>(first + lane * kLargestExchange);
  }
};
// By assignment, and not by memcpy: the sanitizers make a call of each of those.
template <typename T>
Offers<T> exchange(const T& value) {
  ::new (place_of_offer()) T(value);
  return {meet_warp()};
}

template <typename T>
T read_lane(const T& value, int source) {
  return exchange(value)[source & 31];
}

}  // namespace on_cpu

inline float flush_subnormal(float x) {
  return std::abs(x) < 0x1p-126f ? std::copysign(0.f, x) : x;
}
inline float exp2_approx(float x) { return flush_subnormal(std::exp2(flush_subnormal(x))); }
inline float log2_approx(float x) { return std::log2(flush_subnormal(x)); }
inline float reciprocal_approx(float x) { return flush_subnormal(1 / flush_subnormal(x)); }

template <typename T>
T* offset_bytes(T* base, int a, int b) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(base) + int64_t{a} * b);
}
template <typename T>
T uniform(T number) {
  return number;
}
inline void keep(int&) {}
inline unsigned keep_own(unsigned number) { return number; }
template <typename T>
T* keep_shared(T* address) {
  return address;
}
inline void fma_if(bool yes, float a, float b, float& c) {
  if (yes) c = std::fma(a, b, c);
}
inline void multiply_if(bool yes, float a, float& c) {
  if (yes) c *= a;
}
inline void store_shared_if(bool yes, float2* at, float2 value) {
  if (yes) *at = value;
}

inline void barrier_wait(int barrier, int threads) {
  on_cpu::named_barrier(barrier, threads, true);
}
inline void barrier_wait_behind(float, int barrier, int threads) { barrier_wait(barrier, threads); }
inline void barrier_arrive(int barrier, int threads) {
  on_cpu::named_barrier(barrier, threads, false);
}

using on_cpu::begin_signal;
using on_cpu::give_signal;
using on_cpu::wait_signal;

inline unsigned draw_number(unsigned* drawn, unsigned count) {
  const unsigned number = *drawn;
  *drawn = number + 1 < count ? number + 1 : 0;
  return number;
}
using on_cpu::raise_flag;
using on_cpu::wait_flag;

inline void commit_copies() {}
template <int kPending>
void wait_copies() {}

inline unsigned char* shared_memory() { return on_cpu::dynamic_shared_memory(); }

struct LaunchShape {
  int64_t grid;
  int block;
  int64_t shared_bytes = 0;
};

inline void fill_zeros(const char*, void* data, int64_t bytes, GpuStream) {
  std::memset(data, 0, static_cast<std::size_t>(bytes));
}

template <typename... Parameters, typename... Args>
void launch(const char* what, void (*kernel)(Parameters...), const LaunchShape& shape, GpuStream,
            Args&&... args) {
  const auto call = [&] { kernel(static_cast<Parameters>(args)...); };
  on_cpu::run_grid(
      what, shape.grid, shape.block, shape.shared_bytes,
      [](void* context) { (*static_cast<decltype(call)*>(context))(); },
      const_cast<void*>(static_cast<const void*>(&call)));
}

}  // namespace linescan

inline void __syncthreads() { linescan::on_cpu::block_barrier(); }
inline void __threadfence_block() {}
inline void __syncwarp(unsigned = linescan::kAllLanes) { linescan::on_cpu::meet_warp(); }
template <typename T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  const int lane = linescan::on_cpu::lane();
  return linescan::on_cpu::read_lane(value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  const int lane = linescan::on_cpu::lane(), source = lane ^ mask;
  return linescan::on_cpu::read_lane(value, source / width == lane / width ? source : lane);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int by, int width = 32) {
  const int lane = linescan::on_cpu::lane(), source = lane - by;
  return linescan::on_cpu::read_lane(value, source >= (lane & ~(width - 1)) ? source : lane);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int by, int width = 32) {
  const int lane = linescan::on_cpu::lane(), source = lane + by;
  return linescan::on_cpu::read_lane(value, source / width == lane / width ? source : lane);
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const auto offers = linescan::on_cpu::exchange(unsigned{predicate != 0});
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= offers[i] << i;
  return bits;
}

namespace linescan {

namespace on_cpu {

// A lane's elements of A, B and c: registers, neighbours in k of each.
struct Operands {
  float a[4][2], b[2][2], c[4];
};
// The lane's four numbers of A B + c, until the warp's next exchange but one. The lane that comes last multiplies for all.
const float* multiply_with_warp(const Operands& own, int depth);

// d = A B + c, the warp's lanes holding A [16, k], B [k, 8] and c [16, 8] as PTX lays them out. `pick`
// gives element `index` of k of a register: (word, index) -> float.
template <int kDepth, class Pick>
void multiply_fragments(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        const float (&c)[4], const Pick& pick) {
  Operands own;
  for (int i = 0; i < kDepth / 8; ++i) {
    for (int j = 0; j < 4; ++j) own.a[j][i] = pick(a[j], i);
    for (int j = 0; j < 2; ++j) own.b[j][i] = pick(b[j], i);
  }
  std::copy_n(c, 4, own.c);
  std::copy_n(multiply_with_warp(own, kDepth), 4, d);
}

inline float half_of(uint32_t word, int index, bool bfloat) {
  const auto bits = static_cast<uint16_t>(word >> (16 * index));
  return bfloat ? bfloat16_to_float(bits) : float16_to_float(bits);
}

}  // namespace on_cpu

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     const float (&c)[4]) {
  on_cpu::multiply_fragments<16>(
      d, a, b, c, [](uint32_t word, int i) { return on_cpu::half_of(word, i, true); });
}
inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                    const float (&c)[4]) {
  on_cpu::multiply_fragments<16>(
      d, a, b, c, [](uint32_t word, int i) { return on_cpu::half_of(word, i, false); });
}
inline void mma_bf16_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b, const float (&c)[4]) {
  mma_bf16(d, {a[0], a[1], 0, 0}, {b, 0}, c);
}
inline void mma_f16_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b, const float (&c)[4]) {
  mma_f16(d, {a[0], a[1], 0, 0}, {b, 0}, c);
}
template <typename T>
T in_register(T x) {
  return x;
}
inline unsigned read_thread() { return threadIdx.x; }
inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                     const float (&c)[4]) {
  on_cpu::multiply_fragments<8>(
      d, a, b, c, [](uint32_t word, int) { return std::bit_cast<float>(word & 0xFFFFE000u); });
}
namespace on_cpu {
struct alignas(16) MatrixRow {
  uint32_t words[4];

  uint32_t half(int i) const { return words[i / 2] >> (16 * (i % 2)) & 0xFFFFu; }
};
}  // namespace on_cpu
inline void load_matrices(uint32_t (&words)[4], const void* row) {
  const auto rows = on_cpu::exchange(*static_cast<const on_cpu::MatrixRow*>(row));
  for (int i = 0; i < 4; ++i) words[i] = rows[8 * i + on_cpu::lane() / 4].words[on_cpu::lane() % 4];
}
inline void load_matrices_transposed(uint32_t (&words)[4], const void* row) {
  const auto rows = on_cpu::exchange(*static_cast<const on_cpu::MatrixRow*>(row));
  const int first = on_cpu::lane() % 4 * 2, column = on_cpu::lane() / 4;
  for (int i = 0; i < 4; ++i)
    words[i] = rows[8 * i + first].half(column) | rows[8 * i + first + 1].half(column) << 16;
}
inline uint32_t transpose_8x8(uint32_t rows) {
  const auto offers = on_cpu::exchange(rows);
  const int g = on_cpu::lane() / 4, q = on_cpu::lane() % 4;
  uint32_t result = 0;
  for (int i = 0; i < 2; ++i)
    result |= (offers[(2 * q + i) * 4 + g / 2] >> (16 * (g % 2)) & 0xFFFFu) << (16 * i);
  return result;
}

}  // namespace linescan

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
