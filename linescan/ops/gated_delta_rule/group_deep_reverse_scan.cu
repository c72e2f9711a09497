// gated_delta_rule, the scan of the gradient of the state by warp groups with many keys: what group_reverse_scan.cu computes, for
// half types and 129 to 256 keys, where products of warp groups are to be had (gpu_group_deep.cuh).
//
//   gX = A^T (write o (K gS') + P^T gO)
//   gS = decay gS' + (read_q o Q)^T gO - (beta read_k o K)^T gX
//
// Numerics:  gS and all sums in float32; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_deep.cuh"

namespace linescan {
namespace {

using enum DepthIs;

// kBoxes: as for DeepTurns.
template <typename T, bool kBoxes>
struct GroupDeepReverseScan {
  using Tiles = DeepTiles<T, true>;
  using Desk = DeepDesk<T, true>;
  using Turns = DeepTurns<T, true, kBoxes>;
  static constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  using Item = DeltaScanItem<kChunk>;

  const DeltaReverseScanArgs<T>& args;
  const GroupScanBoxes& boxes;
  const GroupLanes lanes = {};

  __device__ __forceinline__ GroupScanSource<T> source(const Item& at) const {
    return {args.in, args.sequences, at, args.o, args.o_vectors, args.records};
  }
  // The chunk of a leg's turn.
  static __device__ __forceinline__ int64_t number_of(const Item& at, const DeltaLeg& leg,
                                                      int64_t turn) {
    return at.chunks - 1 - leg.from - turn;
  }

  __device__ __forceinline__ void load(const Item& at, const DeltaLeg& leg, int turns,
                                       Turns& places) const {
    const GroupScanSource<T> from = source(at);
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) places.load(from, number_of(at, leg, turn), boxes);
  }

  __device__ __forceinline__ void send(const Item& at, const DeltaLeg& leg, int turns,
                                       int chain) const {
    using Senders = typename Desk::Senders;
    const int column = 64 * chain;
    const bool leaves = args.state_gradients && at.first_column + column < at.columns;
    const GroupScanSource<T> from = source(at);
    const GroupScanOutputs<T> outputs(args.corrections, args.vectors, args.in.V, at);
    const GroupScanWorkspace<Tiles::kKeys, T> workspace = {args.state_gradients, nullptr, args.cut,
                                                           at.first_column + column};
    const Desk desk(chain);
    desk.send(
        turns,
        [&](int64_t turn) {
          if (leaves)
            workspace.template send_state<Senders>(at.row(number_of(at, leg, turn)), desk.state);
        },
        [&](int64_t turn) {
          if (leaves)
            outputs.template send<Senders, 64, kBoxes>(number_of(at, leg, turn), desk.tokens, from,
                                                       boxes, column);
        });
  }

  __device__ __forceinline__ void carry(const Item& at, const DeltaLeg& leg, int turns,
                                        Turns& places, int chain, unsigned block) const {
    const int value = at.first_column + 64 * chain + threadIdx.x % kGroup / 32 * 16;
    DeepState state;  // gS^T
    if (leg.begins())
      load_start(state, args.segments, at, args.upstream, at.last, at.segment + 1, value,
                 args.in.K);
    else
      DeepHandover(args.shared, block - args.shared.parts, chain).take(state, Desk(chain));
    {
      const Desk desk(chain);
      desk.open();
      desk.put(lanes, state);
      desk.close();
    }
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) {
      const int own = uniform(chain);  // found anew: what follows from it is not kept across turns
      const Desk desk(own);
      const Tiles tile = places.tiles();
      Sums<kChunk / 8> sums;
      FragmentA<T> go[kDepth], rounded[kDepth];
      places.wait(DeepPart::kKeys);
      group_begin(sums);
      multiply_deep(sums, desk.state, tile.k);
      group_commit();
      places.wait(DeepPart::kValues);
      lanes.get_columns(go, {tile.v.data + own * kChunk * 64, kChunk});
      const TokenFactors<kDepth> write(tile, kWrite);
      group_wait<0>(sums);
      // gu^T, and gX^T
      scale_tokens(sums, write);
      group_begin(sums);
      group_multiply<kRows>(sums, go, GroupOperand<T>{tile.P});
      group_commit();
      group_wait<0>(sums);
      round_sums(rounded, sums);
      group_begin(sums);
      group_multiply<kRows>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      // gS^T
      state.scale(tile.rows[kDecay * kChunk]);
      round_sums(go, scaled_tokens(go, TokenFactors<kDepth>(tile, kReadQ)));
      const TokenFactors<kDepth> correction =
          correction_factors(TokenFactors<kDepth>(tile, kBeta), TokenFactors<kDepth>(tile, kReadK));
      group_wait<0>(sums);
      places.used(DeepPart::kValues);
      FragmentA<T> corrected[kDepth];
      round_scaled(corrected, sums, correction);
      round_sums(rounded, sums);
      places.wait(DeepPart::kQueries);
      group_begin(state.halves[0], state.halves[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply_deep(state, half, go, tile.q);
        multiply_deep(state, half, corrected, tile.k);
        group_commit();
      }
      desk.open();
      lanes.put_columns(desk.tokens, rounded);
      group_wait<1>(state.halves[0]);
      desk.put(lanes, 0, {state, 0});
      group_wait<0>(state.halves[1]);
      places.used(DeepPart::kQueries);
      desk.put(lanes, 1, {state, 1});
      desk.close();
      places.used(DeepPart::kKeys);
      places.next();
    }
    if (leg.ends(at.chunks))
      store_end(state, args.segments, at, args.initial, at.first, at.segment, value, args.in.K);
    else
      DeepHandover(args.shared, block, chain).give(state, Desk(chain));
  }
};

template <typename T, bool kBoxes>
__global__ void __launch_bounds__(kDeepThreads, 1)
    group_deep_reverse_scan_kernel(DeltaReverseScanArgs<T> args,
                                   const __grid_constant__ GroupScanBoxes boxes) {
  run_deep_scan(GroupDeepReverseScan < T, kBoxes && kHasBoxes > {args, boxes});
}

}  // namespace

template <typename T>
void launch_delta_group_deep_reverse_scan(const DeltaReverseScanArgs<T>& args,
                                          const LaunchShape& shape, GpuStream stream) {
  const GroupScanBoxes boxes = group_scan_boxes(args.in, args.sequences, args.o, args.corrections);
  const bool all = boxes.valid && all_tokens_are_boxes(args.sequences);
  launch("gated_delta_rule, reverse scan",
         all ? group_deep_reverse_scan_kernel<T, true> : group_deep_reverse_scan_kernel<T, false>,
         shape, stream, args, boxes);
}
template void launch_delta_group_deep_reverse_scan(const DeltaReverseScanArgs<BFloat16>&,
                                                   const LaunchShape&, GpuStream);
template void launch_delta_group_deep_reverse_scan(const DeltaReverseScanArgs<Float16>&,
                                                   const LaunchShape&, GpuStream);

}  // namespace linescan
