// B and C of one tile and some states, which all rows of a block share: on their way from global
// memory while the block computes, then as floats in shared memory.
#pragma once

#include "linescan/ops/device_code/copies.cuh"
#include "linescan/ops/selective_scan/gpu_tile.cuh"

namespace linescan {

// States first .. first + count - 1 at the steps of a tile.
template <int kSegments>
struct GpuChunk {
  GpuTile<kSegments> tile;
  int first, count;
};

template <int kSegments>
__device__ __forceinline__ const unsigned char* factor_address(const GpuFactor& f,
                                                               const GpuPlace<kSegments>& place,
                                                               const GpuChunk<kSegments>& chunk) {
  return f.data + place.item * f.batch + place.group * f.group + chunk.first * f.state +
         chunk.tile.start * f.step;
}

// Calls f(factor, n, unit, slot) for this thread's share of the 16-byte units of a chunk.
template <int kSegments, class Function>
__device__ __forceinline__ void for_units(const SelectiveScanGpuArguments& args,
                                          const GpuChunk<kSegments>& chunk, const Function& f) {
  // log2 of the units of a whole tile: kGpuItems elements are 32 or 64 bytes.
  const int shift = kLog2<kSegments> + (args.factors[0].element == 2 ? 1 : 2);
  const int units = chunk.count << shift, threads = static_cast<int>(blockDim.x);
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    // Other warps begin with C than with B.
    int index = static_cast<int>(threadIdx.x) + which * (threads / 2);
    if (index >= threads) index -= threads;
#pragma unroll 1
    for (int slot = which; index < units; slot += 2, index += threads)
      f(which, index >> shift, index & ((1 << shift) - 1), slot);
  }
}

// 16 bytes of neighbouring steps that no vector access can bring; zero behind the end.
template <typename Word>
__device__ __forceinline__ void gather_unit(unsigned char* to, const unsigned char* from,
                                            int64_t step, int count) {
  Pack<Word, 16 / sizeof(Word)> unit = {};
#pragma unroll
  for (int j = 0; j < static_cast<int>(16 / sizeof(Word)); ++j)
    if (j < count) unit.values[j] = *reinterpret_cast<const Word*>(from + j * step);
  *reinterpret_cast<Pack<Word, 16 / sizeof(Word)>*>(to) = unit;
}

// Starts to bring this thread's units of a chunk to its own slots.
template <int kSegments>
__device__ __forceinline__ void fetch_factors(const SelectiveScanGpuArguments& args,
                                              const GpuPlace<kSegments>& place,
                                              const GpuChunk<kSegments>& chunk,
                                              unsigned char* arrivals) {
  for_units(args, chunk, [&](int which, int n, int unit, int slot) {
    const GpuFactor& f = args.factors[which];
    const int valid = chunk.tile.steps * f.element - unit * 16;  // bytes
    if (f.constant || valid <= 0) return;
    unsigned char* to = arrivals + (slot * blockDim.x + threadIdx.x) * 16;
    const unsigned char* from =
        factor_address(f, place, chunk) + n * f.state + unit * 16 / f.element * f.step;
    if (!f.vectors && f.element == 2)
      gather_unit<uint16_t>(to, from, f.step, valid / 2);
    else if (!f.vectors)
      gather_unit<uint32_t>(to, from, f.step, valid / 4);
    else if (valid >= 16)
      copy_async<16>(to, from);
    else
      copy_async<16>(to, from, valid);
  });
}

// One element of any type.
__device__ __forceinline__ void store_float(unsigned char* address, DType dtype, float x) {
  if (dtype == DType::kBFloat16)
    *reinterpret_cast<BFloat16*>(address) = from_float<BFloat16>(x);
  else if (dtype == DType::kFloat16)
    *reinterpret_cast<Float16*>(address) = from_float<Float16>(x);
  else
    *reinterpret_cast<float*>(address) = x;
}

template <typename T, int kSegments>
__device__ __forceinline__ void unpack_unit(const GpuChunk<kSegments>& chunk,
                                            const unsigned char* slot, int unit, float* to) {
  constexpr int kCount = 16 / sizeof(T);
  const int t = unit * kCount;
  float x[kCount] = {};
  if (t < chunk.tile.steps) {
    const auto pack = *reinterpret_cast<const Pack<T, kCount>*>(slot);
#pragma unroll
    for (int j = 0; j < kCount; ++j) x[j] = to_float(pack.values[j]);
  }
#pragma unroll
  for (int j = 0; j < kCount; j += 4)
    *reinterpret_cast<float4*>(to + chunk.tile.place(t + j)) =
        make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
}

// This thread's units, which have arrived, as floats: to[which, n, place of t], zero behind the row's end.
template <int kSegments>
__device__ __forceinline__ void unpack_factors(const SelectiveScanGpuArguments& args,
                                               const GpuChunk<kSegments>& chunk,
                                               const unsigned char* arrivals, float* to) {
  for_units(args, chunk, [&](int which, int n, int unit, int slot) {
    const GpuFactor& f = args.factors[which];
    if (f.constant) return;
    const unsigned char* own = arrivals + (slot * blockDim.x + threadIdx.x) * 16;
    float* row = to + (which * args.state_tile + n) * GpuShape<kSegments>::kPitch;
    if (f.dtype == DType::kBFloat16)
      unpack_unit<BFloat16>(chunk, own, unit, row);
    else if (f.dtype == DType::kFloat16)
      unpack_unit<Float16>(chunk, own, unit, row);
    else
      unpack_unit<float>(chunk, own, unit, row);
  });
}

// Four items of B or C of one state: from shared memory, or one number if it is constant.
template <bool kConstant>
struct GpuFactorRow {
  const float* items;
  bool constant;
  float value;

  template <int kSegments>
  __device__ __forceinline__ GpuFactorRow(const SelectiveScanGpuArguments& args,
                                          const GpuPlace<kSegments>& place, int which, int first,
                                          int n, const float* chunk)
      : items(chunk + (which * args.state_tile + n) * GpuShape<kSegments>::kPitch +
              place.segment * kGpuSegmentPitch) {
    if constexpr (kConstant) {
      const GpuFactor& f = args.factors[which];
      constant = f.constant;
      value =
          constant && place.exists()
              ? read_as_float(f.data + place.channel * f.group + (first + n) * f.state, f.dtype, 0)
              : 0;
    }
  }
  __device__ __forceinline__ float4 operator()(int i) const {
    if constexpr (kConstant)
      if (constant) return make_float4(value, value, value, value);
    return *reinterpret_cast<const float4*>(items + i);
  }
};

}  // namespace linescan
