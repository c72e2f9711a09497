// What the scans have in common whose two warp groups share the keys (group_pair_scan.cu, group_pair_reverse_scan.cu).
//
// A block carries S^T of 64 columns of V and up to 256 keys, half of the keys a group, in the groups' registers. A
// product over all keys is the sum of the groups' parts, which they tell each other through shared memory. Both load.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"

namespace linescan {

inline constexpr int kPairThreads = 2 * kGroup, kHalfKeys = DeltaLayout::kPairKeys / 2;

// Behind the stages: tokens on their way out, [64, 64], and the groups' parts of sums [64, 64], a thread's own
// number after number.
template <class Tiles, typename T>
struct PairDesk {
  Panels<T> outbox;
  float4* parts;  // [2 groups, 8, kGroup]

  __device__ __forceinline__ PairDesk()
      : outbox{reinterpret_cast<T*>(group_memory() + DeltaLayout::kPairStages * Tiles::kStageBytes),
               64},
        parts(reinterpret_cast<float4*>(outbox.data + 64 * 64)) {}

  __device__ __forceinline__ float4* at(int group) const {
    return parts + group * 8 * kGroup + threadIdx.x % kGroup;
  }
  __device__ __forceinline__ void put(int group, const Sums<8>& sums) const {
    sums.put(at(group), kGroup);
  }
  // sums <- first + second, of which one is here and the other one on the desk.
  __device__ __forceinline__ void add(int group, Sums<8>& sums) const {
    sums.add(at(group), kGroup);
  }
  // A group by itself puts tokens into the outbox, and may then read all of them.
  template <int kDepth>
  __device__ __forceinline__ void put_tokens(const FragmentA<T> (&a)[kDepth]) const {
    constexpr int kOutboxBarrier = 1;
    GroupLanes().put_columns(outbox, a);
    barrier_wait(kOutboxBarrier, kGroup);
  }
  // to [values, keys], from the group's first key on <- the left operand that the state is. A warp's 16 rows pass through
  // the place of its own parts of sums, so that whole lines are stored; eight pieces, each of four rows and 64 keys.
  __device__ __forceinline__ void send_state(const Panels<T>& to, int group,
                                             const FragmentA<T> (&a)[kHalfKeys / 16]) const {
    constexpr int kPiece = 8 * kGroup;  // numbers from one to the next
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    T* const pieces = reinterpret_cast<T*>(parts + group * 8 * kGroup + 32 * warp);
    const int row = lane % 16;
#pragma unroll
    for (int k = 0; k < kHalfKeys / 16; ++k) {
      const int pack = k % 4 * 2 + lane / 16;
      store_matrices<false>(
          pieces + (k / 4 * 4 + row / 4) * kPiece + row % 4 * 64 + (pack ^ row % 8) * 8,
          a[k].words);
    }
    __syncwarp();
    T* const first = to.at(16 * warp, group * kHalfKeys) + lane * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      *reinterpret_cast<uint4*>(first + i / 4 * 64 * 64 + i % 4 * 4 * 64) =
          *reinterpret_cast<const uint4*>(pieces + i * kPiece + lane * 8);
    __syncwarp();
  }
};

// 129 to 256 keys, BFloat16 and Float16.
template <typename T>
void launch_delta_group_pair_scan(const DeltaScanArgs<T>& args, bool outputs,
                                  const LaunchShape& shape, GpuStream stream);
template <typename T>
void launch_delta_group_pair_reverse_scan(const DeltaReverseScanArgs<T>& args,
                                          const LaunchShape& shape, GpuStream stream);

}  // namespace linescan
