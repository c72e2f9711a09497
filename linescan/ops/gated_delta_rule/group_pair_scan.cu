// gated_delta_rule, the scan over the chunks of a sequence by two warp groups that share the keys: what group_scan.cu
// computes, for half types and 129 to 256 keys, where products of warp groups are to be had.
//
// What a group reads from its half of S^T, K S and Q S, is a part of a sum (gpu_group_pair.cuh). Both compute all of u,
// the first one the outputs.
//
// Numerics:  S and all sums in float32, first half of the keys plus second; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_pair.cuh"

namespace linescan {
namespace {

using enum DepthIs;

template <typename T, bool kOutputs>
__global__ void __launch_bounds__(kPairThreads, 1) group_pair_scan_kernel(DeltaScanArgs<T> args) {
  constexpr int kKeys = DeltaLayout::kPairKeys, kStages = DeltaLayout::kPairStages;
  using Tiles = GroupScanTiles<T, kKeys, kOutputs>;
  constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  const DeltaInputs<T>& in = args.in;
  const DeltaScanCut& cut = args.cut;
  const int group = uniform_warp() / 4, first_key = group * kHalfKeys;
  const PairDesk<Tiles, T> desk;

  for (int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const DeltaScanItem<kChunk> at(item, cut, args.sequences, args.segments, in.value_heads, in.V,
                                   kKeys);
    if (!at.exists) continue;
    const bool leaves = kOutputs || args.states;  // something of every chunk
    const int own_value = at.first_column + threadIdx.x % kGroup / 32 * 16;
    const GroupScanSource<T> source(in, args.sequences, at, in.v, in.vectors, args.records);
    const GroupScanOutputs<T> outputs(args.o, args.vectors, in.V, at);
    const GroupScanWorkspace<kKeys, T> workspace = {args.states, args.corrections, cut,
                                                    at.first_column};
    const auto fetch = [&](int64_t number) {
      if (number < at.chunks)
        source.template fetch<kPairThreads>(Tiles(static_cast<int>(number % kStages)), number);
      commit_copies();
    };
    Sums<kHalfKeys / 8> state;  // S^T
    load_start(state, args.segments, at, args.initial, at.first, at.segment, own_value, first_key,
               in.K);
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
      if constexpr (kOutputs) {
        group_begin(reads);
        group_multiply<kColumns>(reads, left, GroupOperand<T>{tile.q, 0, first_key}, false);
        group_commit();
      } else if (leaves) {
        desk.send_state(workspace.state(at.row(number)), group, left);
      }
      FragmentA<T> v[kDepth];
#pragma unroll
      for (int t = 0; t < kDepth; ++t) load_a<kRows>(v[t], GroupOperand<T>{tile.v}, 16 * t);
      group_wait<kOutputs ? 1 : 0>(sums);
      desk.put(group, sums);
      __syncthreads();
      desk.add(1 - group, sums);
      const TokenFactors<kDepth> beta(tile, kBeta);
      round_scaled(rounded, sums, correction_factors(beta, TokenFactors<kDepth>(tile, kReadK)),
                   scaled_tokens(v, beta));
      if constexpr (kOutputs) group_wait<0>(reads);
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      state.scale(tile.rows[kDecay * kChunk]);
      group_wait<0>(sums);
      round_scaled(rounded, sums, TokenFactors<kDepth>(tile, kWrite));
      group_begin(state);
      group_multiply<kRows>(state, rounded, GroupOperand<T>{tile.k, 0, first_key});
      group_commit();
      round_sums(u, sums);
      if constexpr (kOutputs) {
        // The first group's part of K S has been read by this very thread: its place is free.
        if (group == 1) desk.put(0, reads);
        __syncthreads();
        if (group == 0) {
          desk.add(0, reads);
          scale_tokens(reads, TokenFactors<kDepth>(tile, kReadQ));
          group_begin(reads);
          group_multiply<kColumns>(reads, u, GroupOperand<T>{tile.P});
          group_commit();
        }
      }
      if (kOutputs && group == 0)
        group_wait<1>(state);
      else
        group_wait<0>(state);
      round_sums(left, state);
      if (group == 1 || !leaves) continue;
      if constexpr (kOutputs) {
        group_wait<0>(reads);
        round_sums(u, reads);
      }
      desk.put_tokens(u);
      if constexpr (kOutputs)
        outputs.template send_by_rows<64>(number, desk.outbox, at.walk);
      else
        workspace.send_corrections(at.row(number), desk.outbox);
    }
    if (kOutputs || !leaves)
      store_end(state, args.segments, at, args.final_state, at.last, at.segment + 1, own_value,
                first_key, in.K);
    __syncthreads();  // the last stage and the outbox are free
  }
}

}  // namespace

template <typename T>
void launch_delta_group_pair_scan(const DeltaScanArgs<T>& args, bool outputs,
                                  const LaunchShape& shape, GpuStream stream) {
  launch("gated_delta_rule, scan",
         outputs ? group_pair_scan_kernel<T, true> : group_pair_scan_kernel<T, false>, shape,
         stream, args);
}
template void launch_delta_group_pair_scan(const DeltaScanArgs<BFloat16>&, bool, const LaunchShape&,
                                           GpuStream);
template void launch_delta_group_pair_scan(const DeltaScanArgs<Float16>&, bool, const LaunchShape&,
                                           GpuStream);

}  // namespace linescan
