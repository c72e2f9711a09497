// The gradients of B and C: sums over the rows of a warp, one a lane, whose steps lie in registers.
#pragma once

#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/selective_scan/gpu_plan.h"

namespace linescan {

// Sums over the lanes of a state's addends of the gradients of B and C, which come four steps at a
// time. Every lane gets one sum: step() of B or, if of_C(), of C.
//
// float32: by shuffles.
template <typename T>
class AddendSums {
 public:
  static __device__ __forceinline__ bool of_C(int lane) { return lane & 16; }
  static __device__ __forceinline__ int step(int lane) { return lane & 15; }
  __device__ __forceinline__ explicit AddendSums(int lane) : lane_(lane) {}
  __device__ __forceinline__ void add(int four, const float* b, const float* c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b_[4 * four + i] = b[i], c_[4 * four + i] = c[i];
  }
  __device__ __forceinline__ float total() {
#pragma unroll
    for (int i = 0; i < kGpuItems; ++i) {
      const float away = of_C(lane_) ? b_[i] : c_[i], mine = of_C(lane_) ? c_[i] : b_[i];
      b_[i] = mine + __shfl_xor_sync(kAllLanes, away, 16);
    }
    fold_halves<16>(b_, lane_, 8);
    fold_halves<8>(b_, lane_, 4);
    fold_halves<4>(b_, lane_, 2);
    fold_halves<2>(b_, lane_, 1);
    return b_[0];
  }

 private:
  int lane_;
  float b_[kGpuItems], c_[kGpuItems];
};

// Half types: over the four q of lane 4 g + q by products with zeros and ones, which cut an addend to
// eleven bits, no fewer than the data has; then by shuffles. The addends of steps 0 and 1 are rows g
// and g + 8 of the left factor at k = q, those of 2 and 3 at k = q + 4; the right factor puts the sums
// of `four` into columns 2 four and 2 four + 1.
template <typename T>
requires(sizeof(T) == 2) class AddendSums<T> {
 public:
  static __device__ __forceinline__ bool of_C(int lane) { return lane & 16; }
  static __device__ __forceinline__ int step(int lane) {
    return lane % 4 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
  }
  __device__ __forceinline__ explicit AddendSums(int lane) : lane_(lane) {}
  __device__ __forceinline__ void add(int four, const float* b, const float* c) {
    const uint32_t one = __float_as_uint(1.0f);
    const uint32_t columns[2] = {lane_ / 4 == 2 * four ? one : 0,
                                 lane_ / 4 == 2 * four + 1 ? one : 0};
    uint32_t of_b[4], of_c[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of_b[i] = __float_as_uint(b[i]), of_c[i] = __float_as_uint(c[i]);
    mma_tf32(b_, of_b, columns, b_);
    mma_tf32(c_, of_c, columns, c_);
  }
  __device__ __forceinline__ float total() {
    float x[8] = {b_[0], b_[2], b_[1], b_[3], c_[0], c_[2], c_[1], c_[3]};
    fold_halves<8>(x, lane_, 16);
    fold_halves<4>(x, lane_, 8);
    fold_halves<2>(x, lane_, 4);
    return x[0];
  }

 private:
  int lane_;
  float b_[4] = {}, c_[4] = {};
};

}  // namespace linescan
