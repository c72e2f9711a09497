// gated_delta_rule, the scan over the chunks of a sequence by warp groups with many keys: what group_scan.cu computes, for half
// types and 129 to 256 keys, where products of warp groups are to be had (gpu_group_deep.cuh).
//
// Numerics:  S and all sums in float32; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_deep.cuh"

namespace linescan {
namespace {

using enum DepthIs;

// kOutputs: outputs; otherwise states and corrections, or nothing but ends. kBoxes: as for DeepTurns.
template <typename T, bool kOutputs, bool kBoxes>
struct GroupDeepScan {
  using Tiles = DeepTiles<T, kOutputs>;
  using Desk = DeepDesk<T, kOutputs>;
  using Turns = DeepTurns<T, kOutputs, kBoxes>;
  static constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16;
  using Item = DeltaScanItem<kChunk>;

  const DeltaScanArgs<T>& args;
  const GroupScanBoxes& boxes;
  const GroupLanes lanes = {};

  __device__ __forceinline__ GroupScanSource<T> source(const Item& at) const {
    return {args.in, args.sequences, at, args.in.v, args.in.vectors, args.records};
  }

  __device__ __forceinline__ void load(const Item& at, const DeltaLeg& leg, int turns,
                                       Turns& places) const {
    const GroupScanSource<T> from = source(at);
#pragma unroll 1
    for (int turn = 0; turn < turns; ++turn) places.load(from, leg.from + turn, boxes);
  }

  __device__ __forceinline__ void send(const Item& at, const DeltaLeg& leg, int turns,
                                       int chain) const {
    using Senders = typename Desk::Senders;
    const int column = 64 * chain;
    const bool leaves = args.states && at.first_column + column < at.columns;
    const GroupScanSource<T> from = source(at);
    const GroupScanOutputs<T> outputs(args.o, args.vectors, args.in.V, at);
    const GroupScanWorkspace<Tiles::kKeys, T> workspace = {args.states, args.corrections, args.cut,
                                                           at.first_column + column};
    const Desk desk(chain);
    desk.send(
        turns,
        [&](int64_t turn) {
          if (!kOutputs && leaves)
            workspace.template send_state<Senders>(at.row(leg.from + turn), desk.state);
        },
        [&](int64_t turn) {
          const int64_t number = leg.from + turn;
          if constexpr (kOutputs)
            outputs.template send<Senders, 64, kBoxes>(number, desk.tokens, from, boxes, column);
          else if (leaves)
            workspace.template send_corrections<Senders>(at.row(number), desk.tokens);
        });
  }

  __device__ __forceinline__ void carry(const Item& at, const DeltaLeg& leg, int turns,
                                        Turns& places, int chain, unsigned block) const {
    const int value = at.first_column + 64 * chain + threadIdx.x % kGroup / 32 * 16;
    DeltaStops<kChunk> stops(args.segments, leg.from);
    DeepState state;  // S^T
    if (leg.begins())
      load_start(state, args.segments, at, args.initial, at.first, at.segment, value, args.in.K);
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
      if (kOutputs && stops.is_at(leg.from + turn)) {
        const DeltaStates boundary = stops.pass();
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_state(state.halves[half], boundary, at.sequence, at.head, value,
                      half * DeepState::kHalf, args.in.V, args.in.K);
      }
      const int own = uniform(chain);  // found anew: what follows from it is not kept across turns
      const Desk desk(own);
      const Tiles tile = places.tiles();
      Sums<kChunk / 8> sums;
      FragmentA<T> v[kDepth], rounded[kDepth], u[kDepth];
      places.wait(DeepPart::kKeys);
      group_begin(sums);
      multiply_deep(sums, desk.state, tile.k);
      group_commit();
      places.wait(DeepPart::kValues);
      lanes.get_columns(v, {tile.v.data + own * kChunk * 64, kChunk});
      const TokenFactors<kDepth> beta(tile, kBeta);
      const TokenFactors<kDepth> correction =
          correction_factors(beta, TokenFactors<kDepth>(tile, kReadK));
      Sums<kChunk / 8> values = scaled_tokens(v, beta);
      group_wait<0>(sums, values);
      round_scaled(rounded, sums, correction, values);
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      state.scale(tile.rows[kDecay * kChunk]);
      const TokenFactors<kDepth> write(tile, kWrite);
      group_wait<0>(sums);
      places.used(DeepPart::kValues);
      round_scaled(rounded, sums, write);
      round_sums(u, sums);
      group_begin(state.halves[0], state.halves[1]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply_deep(state, half, rounded, tile.k);
        group_commit();
      }
      // What is sent may be written over behind desk.open(); what is multiplied, behind the wait in front of it.
      if constexpr (kOutputs) {
        // o^T = (read_q o Q S)^T + (P u)^T
        places.wait(DeepPart::kQueries);
        group_begin(sums);
        multiply_deep(sums, desk.state, tile.q);
        group_commit();
        const TokenFactors<kDepth> read(tile, kReadQ);
        group_wait<1>(state.halves[0], state.halves[1]);
        const typename Desk::RoundedHalf first(state, 0);
        group_wait<0>(sums);
        places.used(DeepPart::kQueries);
        scale_tokens(sums, read);
        group_begin(sums);
        group_multiply<kColumns>(sums, u, GroupOperand<T>{tile.P});
        group_commit();
        desk.open();
        desk.put(lanes, 0, first);
        desk.put(lanes, 1, {state, 1});
        group_wait<0>(sums);
        round_sums(u, sums);
      } else {
        group_wait<1>(state.halves[0]);
        const typename Desk::RoundedHalf first(state, 0);
        desk.open();
        desk.put(lanes, 0, first);
        group_wait<0>(state.halves[1]);
        desk.put(lanes, 1, {state, 1});
      }
      if constexpr (kOutputs)
        lanes.put_columns(desk.tokens, u);
      else
        lanes.put_rows(desk.tokens, u);
      desk.close();
      places.used(DeepPart::kKeys);
      places.next();
    }
    if (!leg.ends(at.chunks))
      DeepHandover(args.shared, block, chain).give(state, Desk(chain));
    else if (kOutputs || !args.states)
      store_end(state, args.segments, at, args.final_state, at.last, at.segment + 1, value,
                args.in.K);
  }
};

template <typename T, bool kOutputs, bool kBoxes>
__global__ void __launch_bounds__(kDeepThreads, 1)
    group_deep_scan_kernel(DeltaScanArgs<T> args, const __grid_constant__ GroupScanBoxes boxes) {
  run_deep_scan(GroupDeepScan < T, kOutputs, kBoxes && kHasBoxes > {args, boxes});
}

}  // namespace

template <typename T>
void launch_delta_group_deep_scan(const DeltaScanArgs<T>& args, bool outputs,
                                  const LaunchShape& shape, GpuStream stream) {
  const GroupScanBoxes boxes = group_scan_boxes(args.in, args.sequences, args.in.v, args.o);
  const bool all = boxes.valid && all_tokens_are_boxes(args.sequences) && args.cut.unit_parts == 0;
  const auto kernel_of = [&]<bool kOutputs>() {
    return all ? group_deep_scan_kernel<T, kOutputs, true>
               : group_deep_scan_kernel<T, kOutputs, false>;
  };
  launch("gated_delta_rule, scan",
         outputs ? kernel_of.template operator()<true>() : kernel_of.template operator()<false>(),
         shape, stream, args, boxes);
}
template void launch_delta_group_deep_scan(const DeltaScanArgs<BFloat16>&, bool, const LaunchShape&,
                                           GpuStream);
template void launch_delta_group_deep_scan(const DeltaScanArgs<Float16>&, bool, const LaunchShape&,
                                           GpuStream);

}  // namespace linescan
