// B and C of a warp's next states at a tile's steps: from global memory to registers while the warp
// computes, from there as floats to shared memory that no other warp uses.
#pragma once

#include "linescan/ops/selective_scan/gpu_items.cuh"
#include "linescan/ops/selective_scan/gpu_tile.cuh"

namespace linescan {

// A lane brings half of the steps of B or C of one state, kLoads times; C only if kBoth. kFloats: in shared
// memory, from one state's numbers to the next one's: B, then C, kGpuItems each.
template <typename T, bool kBoth, int kLoads, int kFloats_>
struct FactorBatch {
  static constexpr int kFloats = kFloats_;
  static constexpr int kLanes = kBoth ? 4 : 2;           // of a state
  static constexpr int kLoadStates = kGpuWarp / kLanes;  // of one load
  static constexpr int kStates = kLoads * kLoadStates;
  static_assert(kFloats >= kGpuItems * kLanes / 2);
  GpuRawItems<T, kGpuItems / 2> items[kLoads];

  // Of states first, first + stride, ..; zero where there is none and behind the row's end.
  template <class Place>
  __device__ __forceinline__ FactorBatch(const SelectiveScanGpuArguments& args, const Place& place,
                                         int tile, int first, int stride) {
    const GpuFactor& f = args.factors[kBoth ? place.lane / 2 % 2 : 0];
    const int64_t start = int64_t{tile} * kGpuItems + place.lane % 2 * (kGpuItems / 2);
    int n = first + place.lane / kLanes * stride;
    const unsigned char* from =
        f.data + place.item * f.batch + place.group * f.group + n * f.state + start * f.step;
    const bool whole = f.vectors && int64_t{tile + 1} * kGpuItems <= args.length;
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (whole) {
        if (n < args.states) items[load] = load_words<T, kGpuItems / 2, 4>(from);
      } else {
        const int64_t rest = n < args.states ? args.length - start : 0;
        items[load] = load_items<T, kGpuItems / 2>(
            from, f.step, f.unit,
            static_cast<int>(max(int64_t{0}, min(rest, int64_t{kGpuItems / 2}))));
      }
      n += kLoadStates * stride, from += int64_t{kLoadStates} * stride * f.state;
    }
  }
  // to[state, kFloats]
  __device__ __forceinline__ void unpack(float* to, int lane) const {
    to += lane / kLanes * kFloats + lane % kLanes * (kGpuItems / 2);
#pragma unroll
    for (int load = 0; load < kLoads; ++load, to += kLoadStates * kFloats)
#pragma unroll
      for (int i = 0; i < kGpuItems / 2; i += 4)
        *reinterpret_cast<float4*>(to + i) =
            make_float4(items[load][i], items[load][i + 1], items[load][i + 2], items[load][i + 3]);
  }
};

}  // namespace linescan
