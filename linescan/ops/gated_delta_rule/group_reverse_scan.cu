// gated_delta_rule, the scan of the gradient of the state by warp groups: what reverse_scan.cu computes, for half
// types, 64 or 128 keys, where products of warp groups are to be had.
//
//   gX = A^T (write o (K gS') + P^T gO)
//   gS = decay gS' + (read_q o Q)^T gO - (beta read_k o K)^T gX
//
// Numerics:  gS and all sums in float32; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"

namespace linescan {
namespace {

using enum DepthIs;

template <typename T, int kKeys>
__global__ void __launch_bounds__(2 * kGroup, 1)
    group_reverse_scan_kernel(DeltaReverseScanArgs<T> args) {
  using Tiles = GroupScanTiles<T, kKeys, true>;
  constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  const DeltaInputs<T>& in = args.in;
  const DeltaScanCut& cut = args.cut;
  const bool computes = threadIdx.x < kGroup;
  GroupTurns turns(cut.stages);
  using Desk = GroupDesk<Tiles, T, kKeys>;

  for (int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const DeltaScanItem<kChunk> at(item, cut, args.sequences, args.segments, in.value_heads, in.V,
                                   kKeys);
    if (!at.exists) continue;
    const bool leaves = args.state_gradients;  // something of every chunk
    if (!computes) {
      const GroupScanWorkspace<kKeys, T> workspace = {
          args.state_gradients, args.correction_gradients, cut, at.first_column};
      const GroupScanSource<T> source(in, at, args.o, args.o_vectors, args.records);
      turns.move(
          at.chunks, [&](int stage, int64_t i) { source.fetch(Tiles(stage), at.chunks - 1 - i); },
          [&](int64_t i) {
            if (!leaves) return;
            const Desk desk(cut.stages, i, true);
            workspace.send_state(at.row(at.chunks - 1 - i), desk.state);
            workspace.send_corrections(at.row(at.chunks - 1 - i), desk.tokens);
          });
      continue;
    }

    const int own_value = at.first_column + threadIdx.x / 32 * 16;
    Sums<kKeys / 8> state;  // gS^T
    load_start(state, args.segments, at, args.upstream, at.last, at.segment + 1, own_value, 0,
               in.K);
    FragmentA<T> left[kKeys / 16];
    round_sums(left, state);
#pragma unroll 1
    for (int64_t turn = 0; turn < at.chunks; ++turn) {
      const Tiles tile(turns.take());
      const Desk desk(cut.stages, turn, true);
      Sums<kChunk / 8> sums, through_p;
      FragmentA<T> go[kDepth], rounded[kDepth];
      turns.before_putting(turn);
      if (leaves) put_rows(desk.state, left);
      group_begin(sums);
      group_multiply<kColumns>(sums, left, GroupOperand<T>{tile.k}, false);
      group_commit();
#pragma unroll
      for (int t = 0; t < kDepth; ++t) load_a<kRows>(go[t], GroupOperand<T>{tile.v}, 16 * t);
      group_begin(through_p);
      group_multiply<kRows>(through_p, go, GroupOperand<T>{tile.P}, false);
      group_commit();
      group_wait<0>(sums, through_p);
      // gu^T
      round_upstream(rounded, sums, through_p, tile);
      // gX^T
      group_begin(sums);
      group_multiply<kRows>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      // gS^T
      state.scale(tile.rows[kDecay * kChunk]);
      scale_upstream(go, tile);
      group_begin(state);
      group_multiply<kRows>(state, go, GroupOperand<T>{tile.q});
      group_commit();
      group_wait<1>(sums);
      FragmentA<T> corrected[kDepth];
      round_corrections(corrected, sums, tile);
      group_begin();
      group_multiply<kRows>(state, corrected, GroupOperand<T>{tile.k});
      group_commit();
      if (leaves) {
        round_sums(rounded, sums);
        put_columns(desk.tokens, rounded);
      }
      group_wait<0>(state);
      turns.used();
      round_sums(left, state);
    }
    turns.close(at.chunks);
    store_end(state, args.segments, at, args.initial, at.first, at.segment, own_value, 0, in.K);
  }
}

}  // namespace

template <typename T>
void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<T>& args, int64_t padded_keys,
                                     const LaunchShape& shape, GpuStream stream) {
  launch("gated_delta_rule, reverse scan",
         padded_keys == 64 ? group_reverse_scan_kernel<T, 64> : group_reverse_scan_kernel<T, 128>,
         shape, stream, args);
}
template void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<BFloat16>&, int64_t,
                                              const LaunchShape&, GpuStream);
template void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<Float16>&, int64_t,
                                              const LaunchShape&, GpuStream);

}  // namespace linescan
