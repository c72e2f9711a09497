// gated_delta_rule, the scan over the chunks of a sequence by warp groups: what chunk_scan.cu computes, for half
// types, 64 or 128 keys, where products of warp groups are to be had.
//
//   u = A (beta o (V - read_k o (K S)))        o = read_q o (Q S) + P u        S <- decay S + K^T (write o u)
//
// Held transposed as there: the sums of one product are, rounded, the left operand of the next.
//
// Numerics:  S and all sums in float32; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"

namespace linescan {
namespace {

using enum DepthIs;

template <typename T, int kKeys, bool kOutputs>
__global__ void __launch_bounds__(2 * kGroup, 1) group_scan_kernel(DeltaScanArgs<T> args) {
  using Tiles = GroupScanTiles<T, kKeys, kOutputs>;
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
    const bool leaves = kOutputs || args.states;  // something of every chunk
    if (!computes) {
      const GroupScanWorkspace<kKeys, T> workspace = {args.states, args.corrections, cut,
                                                      at.first_column};
      const GroupScanSource<T> source(in, at, in.v, in.vectors, args.records);
      const DeltaChunk start(at.walk, 0, 1);
      T* const out = args.o.data ? start.rows(args.o, at.head) + at.first_column : nullptr;
      const int64_t out_step = start.row_step(args.o);
      turns.move(
          at.chunks, [&](int stage, int64_t number) { source.fetch(Tiles(stage), number); },
          [&](int64_t number) {
            if (!leaves) return;
            const Desk desk(cut.stages, number, !kOutputs);
            if constexpr (kOutputs) {
              const int64_t token = number * kChunk;
              send_rows<64>(out + token * out_step, out_step,
                            static_cast<int>(min(int64_t{kChunk}, at.walk.length - token)),
                            in.V - at.first_column, args.vectors, desk.tokens);
            } else {
              workspace.send_state(at.row(number), desk.state);
              workspace.send_corrections(at.row(number), desk.tokens);
            }
          });
      continue;
    }

    const int own_value = at.first_column + threadIdx.x / 32 * 16;
    Sums<kKeys / 8> state;  // S^T
    load_start(state, args.segments, at, args.initial, at.first, at.segment, own_value, 0, in.K);
    FragmentA<T> left[kKeys / 16], u[kDepth], rounded[kDepth];
    round_sums(left, state);
#pragma unroll 1
    for (int64_t number = 0; number < at.chunks; ++number) {
      const Tiles tile(turns.take());
      const Desk desk(cut.stages, number, !kOutputs);
      Sums<kChunk / 8> sums, reads;
      turns.before_putting(number);
      if constexpr (!kOutputs)
        if (leaves) put_rows(desk.state, left);
      group_begin(sums);
      group_multiply<kColumns>(sums, left, GroupOperand<T>{tile.k}, false);
      group_commit();
      FragmentA<T> v[kDepth];
#pragma unroll
      for (int t = 0; t < kDepth; ++t) load_a<kRows>(v[t], GroupOperand<T>{tile.v}, 16 * t);
      group_wait<0>(sums);
      round_differences(rounded, sums, v, tile);
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      if constexpr (kOutputs) {
        group_begin(reads);
        group_multiply<kColumns>(reads, left, GroupOperand<T>{tile.q}, false);
        group_commit();
      }
      state.scale(tile.rows[kDecay * kChunk]);
      group_wait<kOutputs ? 1 : 0>(sums);
      round_written(rounded, sums, tile);
      group_begin(state);
      group_multiply<kRows>(state, rounded, GroupOperand<T>{tile.k});
      group_commit();
      round_sums(u, sums);
      if constexpr (kOutputs) {
        group_wait<1>(reads);
        scale_reads(reads, tile);
        group_begin(reads);
        group_multiply<kColumns>(reads, u, GroupOperand<T>{tile.P});
        group_commit();
        group_wait<1>(state);
        round_sums(left, state);
        group_wait<0>(reads);
        round_sums(u, reads);
        put_columns(desk.tokens, u);
      } else {
        if (leaves) put_columns(desk.tokens, u);
        group_wait<0>(state);
        round_sums(left, state);
      }
      turns.used();
    }
    turns.close(at.chunks);
    if (kOutputs || !leaves)
      store_end(state, args.segments, at, args.final_state, at.last, at.segment + 1, own_value, 0,
                in.K);
  }
}

}  // namespace

template <typename T>
void launch_delta_group_scan(const DeltaScanArgs<T>& args, bool outputs, int64_t padded_keys,
                             const LaunchShape& shape, GpuStream stream) {
  const auto kernel =
      padded_keys == 64
          ? (outputs ? group_scan_kernel<T, 64, true> : group_scan_kernel<T, 64, false>)
          : (outputs ? group_scan_kernel<T, 128, true> : group_scan_kernel<T, 128, false>);
  launch("gated_delta_rule, scan", kernel, shape, stream, args);
}
template void launch_delta_group_scan(const DeltaScanArgs<BFloat16>&, bool, int64_t,
                                      const LaunchShape&, GpuStream);
template void launch_delta_group_scan(const DeltaScanArgs<Float16>&, bool, int64_t,
                                      const LaunchShape&, GpuStream);

}  // namespace linescan
