// What both passes of layer_norm share: a row's numbers in the registers of a few lanes.
#pragma once

#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/layer_norm/gpu_plan.h"

namespace linescan {

// kNormVector numbers from an address that is a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ void load_vector(const T* __restrict__ from, float* to) {
  constexpr int kCount = 16 / sizeof(T);
#pragma unroll
  for (int part = 0; part < kNormVector; part += kCount) {
    const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(from + part);
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[part + i] = to_float(pack.values[i]);
  }
}

template <typename T>
__device__ __forceinline__ void store_vector(const float* from, T* to) {
  constexpr int kCount = 16 / sizeof(T);
#pragma unroll
  for (int part = 0; part < kNormVector; part += kCount) {
    Pack<T, kCount> pack;
#pragma unroll
    for (int i = 0; i < kCount; ++i) pack.values[i] = from_float<T>(from[part + i]);
    *reinterpret_cast<Pack<T, kCount>*>(to + part) = pack;
  }
}

// Calls function.operator()<kVectors>() for the counts that gpu_plan.cpp chooses from.
template <class Function>
void dispatch_vectors(int64_t vectors, const Function& function) {
  if (vectors == 1) return function.template operator()<1>();
  if (vectors == 3) return function.template operator()<3>();
  return function.template operator()<4>();
}

}  // namespace linescan
