// gated_delta_rule, the scan of the gradient of the state by two warp groups that share the keys: what
// group_reverse_scan.cu computes, for half types and 129 to 256 keys, where products of warp groups are to be had.
//
//   gX = A^T (write o (K gS') + P^T gO)
//   gS = decay gS' + (read_q o Q)^T gO - (beta read_k o K)^T gX
//
// What a group reads from its half of gS'^T, K gS', is a part of a sum (gpu_group_pair.cuh). Both compute all of gX.
//
// Numerics:  gS and all sums in float32, first half of the keys plus second; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_pair.cuh"

namespace linescan {
namespace {

using enum DepthIs;

template <typename T>
__global__ void __launch_bounds__(kPairThreads, 1)
    group_pair_reverse_scan_kernel(DeltaReverseScanArgs<T> args) {
  constexpr int kKeys = DeltaLayout::kPairKeys, kStages = DeltaLayout::kPairStages;
  using Tiles = GroupScanTiles<T, kKeys, true>;
  constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  const DeltaInputs<T>& in = args.in;
  const DeltaScanCut& cut = args.cut;
  const int group = uniform_warp() / 4, first_key = group * kHalfKeys;
  const PairDesk<Tiles, T> desk;

  for (int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const DeltaScanItem<kChunk> at(item, cut, args.sequences, args.segments, in.value_heads, in.V,
                                   kKeys);
    if (!at.exists) continue;
    const bool leaves = args.state_gradients;  // something of every chunk
    const int own_value = at.first_column + threadIdx.x % kGroup / 32 * 16;
    const GroupScanWorkspace<kKeys, T> workspace = {args.state_gradients, nullptr, cut,
                                                    at.first_column};
    const GroupScanOutputs<T> outputs(args.corrections, args.vectors, in.V, at);
    const GroupScanSource<T> source(in, args.sequences, at, args.o, args.o_vectors, args.records);
    const auto fetch = [&](int64_t number) {
      if (number >= 0)
        source.template fetch<kPairThreads>(Tiles(static_cast<int>(number % kStages)), number);
      commit_copies();
    };
    Sums<kHalfKeys / 8> state;  // gS^T
    load_start(state, args.segments, at, args.upstream, at.last, at.segment + 1, own_value,
               first_key, in.K);
    FragmentA<T> left[kHalfKeys / 16];
    round_sums(left, state);
    fetch(at.chunks - 1);
#pragma unroll 1
    for (int64_t number = at.chunks - 1; number >= 0; --number) {
      wait_copies<0>();
      __syncthreads();  // all of the chunk is here; nobody reads the one before any more
      fetch(number - 1);
      const Tiles tile(static_cast<int>(number % kStages));
      Sums<kChunk / 8> sums, through_p;
      FragmentA<T> go[kDepth], rounded[kDepth];
      group_begin(sums);
      group_multiply<kColumns>(sums, left, GroupOperand<T>{tile.k, 0, first_key}, false);
      group_commit();
      if (leaves) desk.send_state(workspace.state(at.row(number)), group, left);
#pragma unroll
      for (int t = 0; t < kDepth; ++t) load_a<kRows>(go[t], GroupOperand<T>{tile.v}, 16 * t);
      group_begin(through_p);
      group_multiply<kRows>(through_p, go, GroupOperand<T>{tile.P}, false);
      group_commit();
      group_wait<1>(sums);
      desk.put(group, sums);
      __syncthreads();
      desk.add(1 - group, sums);
      group_wait<0>(through_p);
      // gu^T, and gX^T
      round_scaled(rounded, sums, TokenFactors<kDepth>(tile, kWrite), through_p);
      group_begin(sums);
      group_multiply<kRows>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      // gS^T
      state.scale(tile.rows[kDecay * kChunk]);
      round_sums(go, scaled_tokens(go, TokenFactors<kDepth>(tile, kReadQ)));
      group_begin(state);
      group_multiply<kRows>(state, go, GroupOperand<T>{tile.q, 0, first_key});
      group_commit();
      group_wait<1>(sums);
      FragmentA<T> corrected[kDepth];
      round_scaled(corrected, sums,
                   correction_factors(TokenFactors<kDepth>(tile, kBeta),
                                      TokenFactors<kDepth>(tile, kReadK)));
      group_begin();
      group_multiply<kRows>(state, corrected, GroupOperand<T>{tile.k, 0, first_key});
      group_commit();
      if (group == 0 && leaves) {
        round_sums(rounded, sums);
        desk.put_tokens(rounded);
        outputs.template send_by_rows<64>(number, desk.outbox, at.walk);
      }
      group_wait<0>(state);
      round_sums(left, state);
    }
    store_end(state, args.segments, at, args.initial, at.first, at.segment, own_value, first_key,
              in.K);
    __syncthreads();  // the last stage and the outbox are free
  }
}

}  // namespace

template <typename T>
void launch_delta_group_pair_reverse_scan(const DeltaReverseScanArgs<T>& args,
                                          const LaunchShape& shape, GpuStream stream) {
  launch("gated_delta_rule, reverse scan", group_pair_reverse_scan_kernel<T>, shape, stream, args);
}
template void launch_delta_group_pair_reverse_scan(const DeltaReverseScanArgs<BFloat16>&,
                                                   const LaunchShape&, GpuStream);
template void launch_delta_group_pair_reverse_scan(const DeltaReverseScanArgs<Float16>&,
                                                   const LaunchShape&, GpuStream);

}  // namespace linescan
