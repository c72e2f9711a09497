// Items of a row straight from memory to registers and back, without shared memory between.
#pragma once

#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/selective_scan/gpu_arguments.h"

namespace linescan {

// A lane's items as they lie in memory.
template <typename T, int kCount>
struct GpuRawItems {
  uint32_t words[kCount * sizeof(T) / 4] = {};

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
};

// `count` items from `from` on, `step` bytes apart, in accesses of `unit` items; zero behind them.
template <typename T, int kCount>
__device__ __forceinline__ GpuRawItems<T, kCount> load_items(const unsigned char* from,
                                                             int64_t step, int unit, int count) {
  constexpr int kBytes = kCount * sizeof(T);
  GpuRawItems<T, kCount> items;
  const auto load = [&]<int kWords>() {
#pragma unroll
    for (int i = 0; i < kBytes / (4 * kWords); ++i) {
      const auto some = *reinterpret_cast<const Pack<uint32_t, kWords>*>(from + i * 4 * kWords);
#pragma unroll
      for (int j = 0; j < kWords; ++j) items.words[i * kWords + j] = some.values[j];
    }
  };
  const int bytes = unit * static_cast<int>(sizeof(T));
  if (kBytes >= 16 && bytes >= 16 && count == kCount) {
    load.template operator()<4>();
  } else if (bytes >= 8 && count == kCount) {
    load.template operator()<2>();
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j, from += step) {
      if (j >= count) continue;
      if constexpr (sizeof(T) == 4)
        items.words[j] = *reinterpret_cast<const uint32_t*>(from);
      else
        items.words[j / 2] |= uint32_t{*reinterpret_cast<const uint16_t*>(from)} << (j % 2 * 16);
    }
  }
  return items;
}

template <typename T, int kCount>
__device__ __forceinline__ void store_items(unsigned char* to, int64_t step, int unit, int count,
                                            const float (&x)[kCount]) {
  constexpr int kBytes = kCount * sizeof(T);
  uint32_t words[kBytes / 4];
#pragma unroll
  for (int j = 0; j < kBytes / 4; ++j) {
    if constexpr (sizeof(T) == 4)
      words[j] = __float_as_uint(x[j]);
    else
      words[j] = pair_from_floats<T>(x[2 * j], x[2 * j + 1]);
  }
  const auto store = [&]<int kWords>() {
#pragma unroll
    for (int i = 0; i < kBytes / (4 * kWords); ++i) {
      Pack<uint32_t, kWords> some;
#pragma unroll
      for (int j = 0; j < kWords; ++j) some.values[j] = words[i * kWords + j];
      *reinterpret_cast<Pack<uint32_t, kWords>*>(to + i * 4 * kWords) = some;
    }
  };
  const int bytes = unit * static_cast<int>(sizeof(T));
  if (kBytes >= 16 && bytes >= 16 && count == kCount) {
    store.template operator()<4>();
  } else if (bytes >= 8 && count == kCount) {
    store.template operator()<2>();
  } else {
#pragma unroll
    for (int j = 0; j < kCount; ++j, to += step) {
      if (j >= count) continue;
      if constexpr (sizeof(T) == 4)
        *reinterpret_cast<uint32_t*>(to) = words[j];
      else
        *reinterpret_cast<uint16_t*>(to) =
            static_cast<uint16_t>(j % 2 == 0 ? words[j / 2] : words[j / 2] >> 16);
    }
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
