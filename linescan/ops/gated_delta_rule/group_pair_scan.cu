// gated_delta_rule, outputs and final states by two warp groups that share the keys: what group_scan.cu computes,
// for half types and 129 to 256 keys, where products of warp groups are to be had.
//
// Either group carries S^T of 64 columns of V and half of the keys. What it reads from its half, K S and Q S, is a part
// of a sum: the groups tell each other through shared memory. Both then compute all of u; the first one the outputs.
// Both load.
//
// Numerics:  S and all sums in float32, first half of the keys plus second; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"

namespace linescan {
namespace {

using enum DepthIs;

constexpr int kPairThreads = 2 * kGroup, kHalfKeys = DeltaLayout::kPairKeys / 2;
constexpr int kOutboxBarrier = 1;

// The groups' parts of sums [64, 64], a thread's own number after number.
struct PairDesk {
  float4* parts;  // [2 groups, 8, kGroup]

  __device__ __forceinline__ float4* at(int group) const {
    return parts + group * 8 * kGroup + threadIdx.x % kGroup;
  }
  __device__ __forceinline__ void put(int group, const Sums<8>& sums) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      at(group)[i * kGroup] =
          make_float4(sums.tiles[i][0], sums.tiles[i][1], sums.tiles[i][2], sums.tiles[i][3]);
  }
  // sums <- first + second, of which one is here and the other one on the desk.
  __device__ __forceinline__ void add(int group, Sums<8>& sums) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float4 part = at(group)[i * kGroup];
      sums.tiles[i][0] += part.x;
      sums.tiles[i][1] += part.y;
      sums.tiles[i][2] += part.z;
      sums.tiles[i][3] += part.w;
    }
  }
};

template <typename T>
__global__ void __launch_bounds__(kPairThreads, 1) group_pair_scan_kernel(DeltaScanArgs<T> args) {
  using Tiles = GroupScanTiles<T, DeltaLayout::kPairKeys, true>;
  constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16, kStages = DeltaLayout::kPairStages;
  const DeltaInputs<T>& in = args.in;
  const DeltaScanCut& cut = args.cut;
  // The same in a warp; the shuffle says so to the compiler.
  const int group = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kGroup, 0);
  const int first_key = group * kHalfKeys;
  const Panels<T> outbox = {reinterpret_cast<T*>(group_memory() + kStages * Tiles::kStageBytes),
                            64};
  const PairDesk desk = {reinterpret_cast<float4*>(outbox.data + 64 * 64)};

  for (int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const DeltaScanItem<kChunk> at(item, cut, args.sequences, in.value_heads);
    const int first_value = at.part * cut.block_values();
    const int own_value = first_value + threadIdx.x % kGroup / 32 * 16;
    const GroupScanSource<T> source(in, at, in.v, first_value, in.vectors, args.records);
    const DeltaChunk start(at.walk, 0, 1);
    T* const out = start.rows(args.o, at.head) + first_value;
    const int64_t out_step = start.row_step(args.o);
    const auto fetch = [&](int64_t number) {
      if (number < at.chunks)
        source.template fetch<kPairThreads>(Tiles(static_cast<int>(number % kStages)), number);
      commit_copies();
    };
    Sums<kHalfKeys / 8> state;  // S^T
    load_state(state, args.initial, at.sequence, at.head, own_value, first_key, in.V, in.K);
    FragmentA<T> left[kHalfKeys / 16], u[kDepth], rounded[kDepth];
    round_sums(left, state);
    fetch(0);
#pragma unroll 1
    for (int64_t number = 0; number < at.chunks; ++number) {
      wait_copies<0>();
      __syncthreads();  // all of the chunk is here; nobody reads the one before any more
      fetch(number + 1);
      const Tiles tile(static_cast<int>(number % kStages));
      Sums<kChunk / 8> sums, reads;
      group_begin(sums);
      group_multiply<kColumns>(sums, left, GroupOperand<T>{tile.k, 0, first_key}, false);
      group_commit();
      group_begin(reads);
      group_multiply<kColumns>(reads, left, GroupOperand<T>{tile.q, 0, first_key}, false);
      group_commit();
      FragmentA<T> v[kDepth];
#pragma unroll
      for (int t = 0; t < kDepth; ++t) load_a<kRows>(v[t], GroupOperand<T>{tile.v}, 16 * t);
      group_wait<1>(sums);
      desk.put(group, sums);
      __syncthreads();
      desk.add(1 - group, sums);
      round_differences(rounded, sums, v, tile);
      group_wait<0>(reads);
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      const float decay = tile.rows[kDecay * kChunk];
#pragma unroll
      for (int i = 0; i < kHalfKeys / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) state.tiles[i][j] *= decay;
      group_wait<0>(sums);
      round_written(rounded, sums, tile);
      group_begin(state);
      group_multiply<kRows>(state, rounded, GroupOperand<T>{tile.k, 0, first_key});
      group_commit();
      // The first group's part of K S has been read by this very thread: its place is free.
      if (group == 1) desk.put(0, reads);
      round_sums(u, sums);
      __syncthreads();
      if (group == 0) {
        desk.add(0, reads);
        scale_reads(reads, tile);
        group_begin(reads);
        group_multiply<kColumns>(reads, u, GroupOperand<T>{tile.P});
        group_commit();
        group_wait<1>(state);
        round_sums(left, state);
        group_wait<0>(reads);
        round_sums(u, reads);
        put_columns(outbox, u);
        barrier_wait(kOutboxBarrier, kGroup);
        const int64_t token = number * kChunk;
        send_rows<64>(out + token * out_step, out_step,
                      static_cast<int>(min(int64_t{kChunk}, at.walk.length - token)),
                      in.V - first_value, args.vectors, outbox);
      } else {
        group_wait<0>(state);
        round_sums(left, state);
      }
    }
    store_state(state, args.final_state, at.sequence, at.head, own_value, first_key, in.V, in.K);
    __syncthreads();  // the last stage and the outbox are free
  }
}

}  // namespace

template <typename T>
void launch_delta_group_pair_scan(const DeltaScanArgs<T>& args, const LaunchShape& shape,
                                  GpuStream stream) {
  launch("gated_delta_rule, scan", group_pair_scan_kernel<T>, shape, stream, args);
}
template void launch_delta_group_pair_scan(const DeltaScanArgs<BFloat16>&, const LaunchShape&,
                                           GpuStream);
template void launch_delta_group_pair_scan(const DeltaScanArgs<Float16>&, const LaunchShape&,
                                           GpuStream);

}  // namespace linescan
