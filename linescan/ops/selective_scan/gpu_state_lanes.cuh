// Several states, lanes that share a row and divide its states: a warp's shared memory, and the steps of a
// tile that each lane prepares and finishes for the others. A warp has 32 / kLanes rows; lane = (row, segment).
#pragma once

#include "linescan/ops/selective_scan/gpu_items.cuh"
#include "linescan/ops/selective_scan/gpu_tile.cuh"
#include "linescan/ops/selective_scan/gpu_write.cuh"

namespace linescan {

// A lane's own steps of a row's tile: where they are, and how they come and go.
template <typename T, int kOwn>
class OwnSteps {
 public:
  // null: there is no such sequence or row.
  __device__ __forceinline__ OwnSteps(const GpuSequence& q, unsigned char* at) : q_(q), at_(at) {}

  // Zero behind the `count` that exist.
  __device__ __forceinline__ GpuRawItems<T, kOwn> load(int count) const {
    if (at_ == nullptr) return {};
    if (is_wide() && count == kOwn) return load_words<T, kOwn, kWords>(at_);
    return load_items<T, kOwn>(at_, q_.step, q_.unit, count);
  }
  __device__ __forceinline__ void store(int count, const float (&x)[kOwn]) const {
    if (at_ == nullptr) return;
    if (is_wide() && count == kOwn)
      store_words<kWords>(at_, raw_items<T>(x));
    else
      store_items<T>(at_, q_.step, q_.unit, count, x);
  }
  // To another row or tile, `bytes` away.
  __device__ __forceinline__ void move(int64_t bytes) {
    if (at_ != nullptr) at_ += bytes;
  }

 private:
  static constexpr int kWords = kOwn * sizeof(T) < 16 ? kOwn * sizeof(T) / 4 : 4;
  const GpuSequence& q_;
  unsigned char* at_;

  __device__ __forceinline__ bool is_wide() const {
    return q_.unit >= kWords * 4 / static_cast<int>(sizeof(T));
  }
};

// Some neighbouring numbers to shared memory.
template <int kCount>
__device__ __forceinline__ void give_own(const float (&x)[kCount], float* to) {
  constexpr int kWide = kCount < 4 ? kCount : 4;
#pragma unroll
  for (int i = 0; i < kCount; i += kWide) {
    Pack<float, kWide> some;
#pragma unroll
    for (int j = 0; j < kWide; ++j) some.values[j] = x[i + j];
    *reinterpret_cast<Pack<float, kWide>*>(to + i) = some;
  }
}

template <int kLanes>
class StateLanesMemory {
 public:
  static constexpr int kOwn = kGpuItems / kLanes, kRows = kGpuWarp / kLanes;
  float2* carries;  // of this lane: kGpuWarp apart, the states of its slots and A log2 e

  // States of a lane: slot * kLanes + segment. Two are walked at once.
  static __device__ __forceinline__ int slots(const SelectiveScanGpuArguments& args) {
    return (args.states + 2 * kLanes - 1) / (2 * kLanes) * 2;
  }
  __device__ __forceinline__ StateLanesMemory(const SelectiveScanGpuArguments& args,
                                              const GpuPlace<kLanes>& place) {
    unsigned char* const shared = shared_memory();
    const auto own = [&](int64_t offset, int floats) {
      return reinterpret_cast<float*>(shared + offset) + place.warp * floats;
    };
    carries = reinterpret_cast<float2*>(own(args.shared.carries, 2 * slots(args) * kGpuWarp)) +
              place.lane;
    factors_ = own(args.shared.factors, 2 * kChunkStates * kChunkPitch);
    exchange_ = own(args.shared.exchange, kGpuExchange);
    row_ = own(args.shared.items, 2 * kRows * kGpuSegmentPitch) + place.row * kGpuSegmentPitch;
    segment_ = place.segment;
    lane_ = place.lane;
  }

  // [kChunkStates, kChunkPitch]; two take turns.
  __device__ __forceinline__ float* factors(int parity) const {
    return factors_ + parity * kChunkStates * kChunkPitch;
  }
  // dt (0) or dt u (1) of the row's steps, or from the lane's own ones on.
  __device__ __forceinline__ float* row_steps(int which) const {
    return row_ + which * kRows * kGpuSegmentPitch;
  }
  __device__ __forceinline__ float* steps(int which) const {
    return row_steps(which) + segment_ * kOwn;
  }
  // The sums over the row's lanes of x, of the lane's own steps. Contains a __syncwarp.
  __device__ __forceinline__ void sum_over_lanes(const float (&x)[kGpuItems],
                                                 float (&sum)[kOwn]) const {
    give_items(x, exchange_, lane_);
    __syncwarp();
    const float* from = exchange_ + (lane_ - segment_) * kGpuSegmentPitch + segment_ * kOwn;
    constexpr int kWide = kOwn < 4 ? kOwn : 4;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sum[i] = 0;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane)
#pragma unroll
      for (int i = 0; i < kOwn; i += kWide) {
        const auto some =
            *reinterpret_cast<const Pack<float, kWide>*>(from + lane * kGpuSegmentPitch + i);
#pragma unroll
        for (int j = 0; j < kWide; ++j) sum[i + j] += some.values[j];
      }
  }

 private:
  float *factors_, *exchange_, *row_;
  int segment_, lane_;
};

}  // namespace linescan
