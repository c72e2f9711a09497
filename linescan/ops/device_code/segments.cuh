// Linear recurrences h <- factor h + offset over neighbouring lanes, and sums over lanes. The lanes of
// a warp come in groups of kWidth, a power of two, and no group sees another.
#pragma once

#include "linescan/ops/device_code/cuda.cuh"

namespace linescan {

// What a run of steps does to a state that enters it.
struct Affine {
  float factor, offset;

  __device__ __forceinline__ float operator()(float h) const { return fmaf(factor, h, offset); }
};

// `all` of a lane becomes that of the lanes up to it, in order, in the group. kBackward: of the lanes from it on, from the
// last one. Of several, the shuffles of a step are under way together.
template <int kWidth, bool kBackward, int kCount>
__device__ __forceinline__ void include_lanes(Affine (&all)[kCount], int place) {
  const auto from = [](float x, int by) {
    return kBackward ? __shfl_down_sync(kAllLanes, x, by, kWidth)
                     : __shfl_up_sync(kAllLanes, x, by, kWidth);
  };
  const int rank = kBackward ? kWidth - 1 - place : place;
#pragma unroll
  for (int by = 1; by < kWidth; by *= 2) {
    Affine others[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) others[i] = {from(all[i].factor, by), from(all[i].offset, by)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      fma_if(rank >= by, all[i].factor, others[i].offset, all[i].offset);
      multiply_if(rank >= by, others[i].factor, all[i].factor);
    }
  }
}
template <int kWidth, bool kBackward>
__device__ __forceinline__ void include_lanes(Affine& all, int place) {
  Affine one[1] = {all};
  include_lanes<kWidth, kBackward>(one, place);
  all = one[0];
}

// The same; the result is that of the lanes before this one (kBackward: behind it).
template <int kWidth, bool kBackward>
__device__ __forceinline__ Affine scan_lanes(Affine& all, int place) {
  include_lanes<kWidth, kBackward>(all, place);
  const auto from = [](float x) {
    return kBackward ? __shfl_down_sync(kAllLanes, x, 1, kWidth)
                     : __shfl_up_sync(kAllLanes, x, 1, kWidth);
  };
  const Affine before{from(all.factor), from(all.offset)};
  return (kBackward ? kWidth - 1 - place : place) == 0 ? Affine{1, 0} : before;
}

// `leaves` of the lane before this one (kBackward: behind it); `h` where there is none.
template <int kWidth, bool kBackward>
__device__ __forceinline__ float from_lane_before(float leaves, int place, float h) {
  const float before = kBackward ? __shfl_down_sync(kAllLanes, leaves, 1, kWidth)
                                 : __shfl_up_sync(kAllLanes, leaves, 1, kWidth);
  return (kBackward ? kWidth - 1 - place : place) == 0 ? h : before;
}

// What enters a lane's steps when h enters the group's; `leaves`: what leaves them.
template <int kWidth, bool kBackward>
__device__ __forceinline__ float pass_lanes(Affine all, int place, float h, float& leaves) {
  include_lanes<kWidth, kBackward>(all, place);
  leaves = all(h);
  return from_lane_before<kWidth, kBackward>(leaves, place, h);
}

// The sum over the group, in every lane.
template <int kWidth>
__device__ __forceinline__ float sum_lanes(float x) {
#pragma unroll
  for (int mask = kWidth / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

// The same for a group size that is known at run time.
__device__ __forceinline__ float sum_lanes(float x, int width) {
  for (int mask = width / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(kAllLanes, x, mask);
  return x;
}

// One step of fold_lanes: lanes that differ in `mask` give each other half of their numbers.
template <int kCount, int kSize>
__device__ __forceinline__ void fold_halves(float (&x)[kSize], int lane, int mask) {
  constexpr int kHalf = kCount / 2;
  const bool upper = lane & mask;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float away = upper ? x[i] : x[i + kHalf], mine = upper ? x[i + kHalf] : x[i];
    x[i] = mine + __shfl_xor_sync(kAllLanes, away, mask);
  }
}

// The sums of 16 numbers each over lanes that have the same place in their group, spread over those
// lanes: x[0 .. kFolded) of a lane become the sums of numbers first .. first + kFolded - 1, where
// `first` is what the function returns. With kWidth = 1 two lanes get the same number.
template <int kWidth>
inline constexpr int kFolded = kWidth == 1 ? 1 : kWidth / 2;

template <int kWidth>
__device__ __forceinline__ int fold_lanes(float (&x)[16], int lane) {
  if constexpr (kWidth <= 16) fold_halves<16>(x, lane, 16);
  if constexpr (kWidth <= 8) fold_halves<8>(x, lane, 8);
  if constexpr (kWidth <= 4) fold_halves<4>(x, lane, 4);
  if constexpr (kWidth <= 2) fold_halves<2>(x, lane, 2);
  if constexpr (kWidth == 1) x[0] += __shfl_xor_sync(kAllLanes, x[0], 1);
  // The lane's highest bit chose the upper or lower eight, the next one four of these, and so on.
  return (lane & (32 - 2 * kFolded<kWidth>)) / 2;
}

}  // namespace linescan
