// Items of a row straight from memory to registers and back, without shared memory between.
#pragma once

#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/selective_scan/gpu_arguments.h"

namespace linescan {

// A lane's items as they lie in memory.
template <typename T, int kCount>
struct GpuRawItems {
  uint32_t words[(kCount * sizeof(T) + 3) / 4] = {};

  __device__ __forceinline__ float operator[](int j) const {
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(words[j]);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      return __uint_as_float(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xFFFF0000u);
    } else {
      const uint32_t word = words[j / 2];
      return to_float(T{static_cast<uint16_t>(j % 2 == 0 ? word : word >> 16)});
    }
  }
  // From here on nothing is known of them: what was computed from them before is computed anew, and needs no registers
  // until then.
  __device__ __forceinline__ void renew() {
#pragma unroll
    for (uint32_t& word : words) word = in_register(word);
  }
  __device__ __forceinline__ void clear(int j) {
    if constexpr (sizeof(T) == 4)
      words[j] = 0;
    else
      words[j / 2] &= j % 2 == 0 ? 0xFFFF0000u : 0xFFFFu;
  }
};

// Neighbouring items in accesses of kWords words; `from` is a multiple of an access's size.
template <typename T, int kCount, int kWords>
__device__ __forceinline__ GpuRawItems<T, kCount> load_words(const unsigned char* from) {
  GpuRawItems<T, kCount> items;
#pragma unroll
  for (int i = 0; i < kCount * static_cast<int>(sizeof(T)) / (4 * kWords); ++i) {
    const auto some = *reinterpret_cast<const Pack<uint32_t, kWords>*>(from + i * 4 * kWords);
#pragma unroll
    for (int j = 0; j < kWords; ++j) items.words[i * kWords + j] = some.values[j];
  }
  return items;
}

// `count` items from `from` on, `step` bytes apart, in accesses of `unit` items; zero behind them.
template <typename T, int kCount>
__device__ __forceinline__ GpuRawItems<T, kCount> load_items(const unsigned char* from,
                                                             int64_t step, int unit, int count) {
  constexpr int kBytes = kCount * sizeof(T);
  const int bytes = unit * static_cast<int>(sizeof(T));
  if constexpr (kBytes % 16 == 0)
    if (bytes >= 16 && count == kCount) return load_words<T, kCount, 4>(from);
  if constexpr (kBytes % 8 == 0)
    if (bytes >= 8 && count == kCount) return load_words<T, kCount, 2>(from);
  if constexpr (kBytes % 8 == 4)
    if (bytes >= 4 && count == kCount) return load_words<T, kCount, 1>(from);
  GpuRawItems<T, kCount> items;
#pragma unroll
  for (int j = 0; j < kCount; ++j, from += step) {
    if (j >= count) continue;
    if constexpr (sizeof(T) == 4)
      items.words[j] = *reinterpret_cast<const uint32_t*>(from);
    else
      items.words[j / 2] |= uint32_t{*reinterpret_cast<const uint16_t*>(from)} << (j % 2 * 16);
  }
  return items;
}

// Items as they will lie in memory.
template <typename T, int kCount>
__device__ __forceinline__ GpuRawItems<T, kCount> raw_items(const float (&x)[kCount]) {
  GpuRawItems<T, kCount> items;
#pragma unroll
  for (int j = 0; j < kCount * static_cast<int>(sizeof(T)) / 4; ++j) {
    if constexpr (sizeof(T) == 4)
      items.words[j] = __float_as_uint(x[j]);
    else
      items.words[j] = pair_from_floats<T>(x[2 * j], x[2 * j + 1]);
  }
  return items;
}

template <int kWords, typename T, int kCount>
__device__ __forceinline__ void store_words(unsigned char* to,
                                            const GpuRawItems<T, kCount>& items) {
#pragma unroll
  for (int i = 0; i < kCount * static_cast<int>(sizeof(T)) / (4 * kWords); ++i) {
    Pack<uint32_t, kWords> some;
#pragma unroll
    for (int j = 0; j < kWords; ++j) some.values[j] = items.words[i * kWords + j];
    *reinterpret_cast<Pack<uint32_t, kWords>*>(to + i * 4 * kWords) = some;
  }
}

template <typename T, int kCount>
__device__ __forceinline__ void store_items(unsigned char* to, int64_t step, int unit, int count,
                                            const float (&x)[kCount]) {
  constexpr int kBytes = kCount * sizeof(T);
  const GpuRawItems<T, kCount> items = raw_items<T>(x);
  const int bytes = unit * static_cast<int>(sizeof(T));
  if constexpr (kBytes >= 16)
    if (bytes >= 16 && count == kCount) return store_words<4>(to, items);
  if constexpr (kBytes >= 8)
    if (bytes >= 8 && count == kCount) return store_words<2>(to, items);
  if constexpr (kBytes == 4)
    if (bytes >= 4 && count == kCount) return store_words<1>(to, items);
#pragma unroll
  for (int j = 0; j < kCount; ++j, to += step) {
    if (j >= count) continue;
    if constexpr (sizeof(T) == 4)
      *reinterpret_cast<uint32_t*>(to) = items.words[j];
    else
      *reinterpret_cast<uint16_t*>(to) =
          static_cast<uint16_t>(j % 2 == 0 ? items.words[j / 2] : items.words[j / 2] >> 16);
  }
}

// Run-time types -> compile-time: T of the data, G of out or its gradient, which is T or float.
template <class Function>
void dispatch_types(DType data, DType other, const Function& function) {
  if (data == DType::kFloat32)
    function.template operator()<float, float>();
  else if (data == DType::kBFloat16 && other == DType::kBFloat16)
    function.template operator()<BFloat16, BFloat16>();
  else if (data == DType::kBFloat16)
    function.template operator()<BFloat16, float>();
  else if (other == DType::kFloat16)
    function.template operator()<Float16, Float16>();
  else
    function.template operator()<Float16, float>();
}

}  // namespace linescan
