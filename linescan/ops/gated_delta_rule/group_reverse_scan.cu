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
__global__ void __launch_bounds__(DeltaLayout::kGroupScanThreads, 1)
    group_reverse_scan_kernel(DeltaReverseScanArgs<T> args,
                              const __grid_constant__ GroupScanBoxes boxes) {
  using Tiles = GroupScanTiles<T, kKeys, true>;
  constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  const DeltaInputs<T>& in = args.in;
  const DeltaScanCut& cut = args.cut;
  const bool computes = threadIdx.x < kGroup;
  using Desk = GroupDesk<Tiles, T, kKeys>;
  GroupTurns<1> turns(cut.stages, Desk::arrivals(cut.stages));
  if (threadIdx.x == 0) turns.begin();
  __syncthreads();
  const GroupLanes lanes;

  for (int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const DeltaScanItem<kChunk> at(item, cut, args.sequences, args.segments, in.value_heads, in.V,
                                   kKeys);
    if (!at.exists) continue;
    const bool leaves = args.state_gradients;  // something of every chunk
    if (!computes) {
      const GroupScanWorkspace<kKeys, T> workspace = {args.state_gradients, nullptr, cut,
                                                      at.first_column};
      const GroupScanOutputs<T> outputs(args.corrections, args.vectors, in.V, at);
      const GroupScanSource<T> source(in, args.sequences, at, args.o, args.o_vectors, args.records);
      turns.move(
          at.chunks,
          [&](int stage, int64_t i, const auto& arrivals) {
            source.fetch(Tiles(stage), at.chunks - 1 - i, boxes, arrivals, stage);
          },
          [&](int, int64_t i) {
            if (!leaves) return;
            const int64_t number = at.chunks - 1 - i;
            const Desk desk(cut.stages, i);
            workspace.template send_state<MovingGroup>(at.row(number), desk.state);
            outputs.template send<MovingGroup, 64>(number, desk.tokens, source, boxes);
            wait_senders<MovingGroup>();
          });
      continue;
    }

    const int own_value = at.first_column + threadIdx.x / 32 * 16;
    Sums<kKeys / 8> state;  // gS^T
    load_start(state, args.segments, at, args.upstream, at.last, at.segment + 1, own_value, 0,
               in.K);
    FragmentA<T> left[kKeys / 16];
    round_sums(left, state);
    int stage = at.chunks > 0 ? turns.take() : 0;
#pragma unroll 1
    for (int64_t turn = 0; turn < at.chunks; ++turn) {
      const Tiles tile(stage);
      const Desk desk(cut.stages, turn);
      Sums<kChunk / 8> sums, through_p;
      FragmentA<T> go[kDepth], rounded[kDepth];
      group_begin(sums);
      group_multiply<kColumns>(sums, left, GroupOperand<T>{tile.k}, false);
      group_commit();
      lanes.get_columns(go, tile.v);
      group_begin(through_p);
      group_multiply<kRows>(through_p, go, GroupOperand<T>{tile.P}, false);
      group_commit();
      // gS^T: what needs no gX
      state.scale(tile.rows[kDecay * kChunk]);
      round_sums(rounded, scaled_tokens(go, TokenFactors<kDepth>(tile, kReadQ)));
      group_begin(state);
      group_multiply<kRows>(state, rounded, GroupOperand<T>{tile.q});
      group_commit();
      turns.before_putting(turn);
      if (leaves) lanes.put_rows(desk.state, left);
      const TokenFactors<kDepth> write(tile, kWrite);
      group_wait<1>(sums, through_p);
      // gu^T
      round_scaled(go, sums, write, through_p);
      // gX^T
      group_begin(sums);
      group_multiply<kRows>(sums, go, GroupOperand<T>{tile.A}, false);
      group_commit();
      const TokenFactors<kDepth> correction =
          correction_factors(TokenFactors<kDepth>(tile, kBeta), TokenFactors<kDepth>(tile, kReadK));
      group_wait<0>(sums, state);
      round_scaled(rounded, sums, correction);
      group_begin(state);
      group_multiply<kRows>(state, rounded, GroupOperand<T>{tile.k});
      group_commit();
      if (leaves) {
        round_sums(go, sums);
        lanes.put_columns(desk.tokens, go);
        group_publish();
      }
      const int next = turn + 1 < at.chunks ? turns.take() : 0;
      group_wait<0>(state);
      turns.used(stage);
      stage = next;
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
         shape, stream, args, group_scan_boxes(args.in, args.sequences, args.o, args.corrections));
}
template void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<BFloat16>&, int64_t,
                                              const LaunchShape&, GpuStream);
template void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<Float16>&, int64_t,
                                              const LaunchShape&, GpuStream);

}  // namespace linescan
