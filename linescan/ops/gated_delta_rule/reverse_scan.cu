// gated_delta_rule, the scan of the gradient of the state from the last chunk of a sequence to its first.
// With gS' arriving from behind, and the chunk's record (gpu_record.cuh):
//
//   gX = A^T (write o (K gS') + P^T gO)
//   gS = decay gS' + (read_q o Q)^T gO - (beta read_k o K)^T gX
//
// Blocks, warps and registers as in chunk_scan.cu: gS^T [16, K] a warp. For the gradients of what went in, gS' of every chunk
// stays in the workspace, and gX where the gradient of v will be, which is beta gX.
//
// Numerics:  gS and all sums in float32; operands of products are rounded to T (float32: three tf32 pieces).
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/gpu_group_deep.cuh"
#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_scan.cuh"

namespace linescan {
namespace {

using enum DeltaSegmentsTaken;
using enum DeltaSegmentsAre;

template <typename T, int kKeys>
__global__ void __launch_bounds__(32 * kDeltaScanWarps)
    reverse_scan_kernel(DeltaReverseScanArgs<T> args) {
  using Tile = DeltaScanTiles<T, kKeys, true>;
  constexpr int kChunk = Tile::kChunk, kOwn = Tile::kOwn;
  const DeltaInputs<T>& in = args.in;
  const DeltaScanCut& cut = args.cut;
  const DeltaScanPlace place(cut, Tile::kOwn);

  for (int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const DeltaScanItem<kChunk> at(item, cut, args.sequences, args.segments, in.value_heads, in.V,
                                   kKeys);
    if (!at.exists) continue;
    const int key_head = at.head / in.group();
    const int own_value = at.first_column + place.value;
    Sums<kOwn / 8> state;  // gS^T
    if (place.computes)
      load_start(state, args.segments, at, args.upstream, at.last, at.segment + 1, own_value,
                 place.key, in.K);

    const auto fetch = [&](int64_t number) {
      Tile tile(cut, number);
      const DeltaChunk chunk(at.walk, number * kChunk, kChunk);
      tile.fetch_keys(place.loaders, tile.k, chunk, in.k, key_head, in);
      tile.fetch_keys(place.loaders, tile.q, chunk, in.q, key_head, in);
      load_tile(place.loaders, tile.v, tile.value_stride,
                args.o.data ? chunk.rows(args.o, at.head) + at.first_column : nullptr,
                chunk.row_step(args.o), kChunk, args.o.data ? chunk.tokens : 0, cut.block_values(),
                at.columns - at.first_column, args.o_vectors);
      tile.fetch_record(place.loaders, args.records, at.row(number));
    };
    walk_chunks(at.chunks, cut.stages, true, place, fetch, [&](int64_t number) {
      const Tile tile(cut, number);
      if (args.state_gradients)
        keep_state(state, args.state_gradients + at.row(number) * cut.state_numbers(kKeys),
                   own_value, place.key, cut.padded_values, kKeys);
      // gu^T
      Sums<kChunk / 8> sums;
      sums.clear();
      {
        FragmentA<T> left[kOwn / 16];
#pragma unroll
        for (int k = 0; k < kOwn / 16; ++k) left[k] = operand<T>(state, k);
        multiply_rows(sums, left, tile.k + place.key, Tile::kStride);
      }
      add_key_parts<Tile::kKeyWarps>(sums, tile.exchange, place);
      sums = sums.mapped([&](float x, int, int token) { return tile.row(kWrite, token) * x; });
      FragmentA<T> go[kChunk / 16];
#pragma unroll
      for (int t = 0; t < kChunk / 16; ++t)
        load_a_transposed(go[t], tile.v + 16 * t * tile.value_stride + place.value,
                          tile.value_stride);
      multiply_columns<true>(sums, go, tile.P, Tile::kSquare);
      // gX^T
      FragmentA<T> gu[kChunk / 16];
#pragma unroll
      for (int t = 0; t < kChunk / 16; ++t) gu[t] = operand<T>(sums, t);
      sums.clear();
      multiply_columns<true>(sums, gu, tile.A, Tile::kSquare);
      if (args.corrections.data && place.key == 0) {
        const DeltaChunk chunk(at.walk, number * kChunk, kChunk);
        store_tokens(chunk.rows(args.corrections, at.head), chunk.row_step(args.corrections),
                     chunk.tokens, sums, own_value, in.V, args.pairs);
      }
      // gS^T
      const float decay = tile.rows[kDecay * kChunk];
      state = state.mapped([&](float x, int, int) { return decay * x; });
      FragmentA<T> read[kChunk / 16];
#pragma unroll
      for (int t = 0; t < kChunk / 16; ++t)
        read[t].fill([&](int r, int i) {
          return tile.row(kReadQ, 16 * t + fragment_k(place.q, i)) * value_of(go[t], r, i);
        });
      multiply_columns(state, read, tile.q + place.key, Tile::kStride);
#pragma unroll
      for (int t = 0; t < kChunk / 16; ++t)
        read[t].fill([&](int r, int i) {
          const int token = 16 * t + fragment_k(place.q, i);
          return -tile.row(kBeta, token) * tile.row(kReadK, token) *
                 sums.tiles[2 * t + (i >> 1)][2 * r + (i & 1)];
        });
      multiply_columns(state, read, tile.k + place.key, Tile::kStride);
    });
    if (place.computes)
      store_end(state, args.segments, at, args.initial, at.first, at.segment, own_value, place.key,
                in.K);
  }
}

}  // namespace

void launch_delta_reverse_scan(const GatedDeltaRuleProblem& p,
                               const GatedDeltaRuleGradients& gradients,
                               const GatedDeltaRuleGpuPlan& plan, const DeltaKept& kept,
                               std::byte* workspace, GpuStream stream) {
  dispatch_delta(p.q.dtype, plan.padded_keys, [&]<typename T, int kKeys>() {
    const bool v_first = p.inputs.state_v_first;
    DeltaReverseScanArgs<T> args = {delta_inputs<T>(p),
                                    delta_sequences(p, workspace),
                                    delta_states(gradients.final_state, v_first),
                                    delta_states(gradients.initial_state, v_first),
                                    delta_rows<const T>(gradients.o),
                                    rows_are_vectors(gradients.o),
                                    delta_scan_cut(p, plan),
                                    kept.records,
                                    reinterpret_cast<T*>(workspace + plan.state_gradients_at),
                                    delta_rows<T>(gradients.v),
                                    rows_are_pairs(gradients.v),
                                    rows_are_vectors(gradients.v),
                                    {},
                                    {}};
    const auto launch_scan = [&](DeltaReverseScanArgs<T> args, const DeltaLaunch& shape) {
      args.shared = delta_shared_walks(p, plan, args.cut, args.segments, shape, workspace);
      if constexpr (sizeof(T) == 2) {
        if (plan.deep_groups)
          return launch_delta_group_deep_reverse_scan(args, shape_of(shape), stream);
        if (plan.warp_groups)
          return launch_delta_group_reverse_scan(args, kKeys, shape_of(shape), stream);
      }
      launch("gated_delta_rule, reverse scan", reverse_scan_kernel<T, kKeys>, shape_of(shape),
             stream, args);
    };
    if (!plan.piece.split || delta_segment_count(p, plan) == 1)
      return launch_scan(args, plan.reverse_scan);
    const DeltaSegments all = delta_segments(
        p, plan, reinterpret_cast<float*>(workspace + plan.boundaries_at),
        p.q.shape[0] * p.v.shape[2] * p.q.shape[3] * p.v.shape[3], kept.turned, workspace);
    const auto walking = [&](DeltaSegmentsTaken taken, DeltaSegmentsAre are) {
      DeltaReverseScanArgs<T> walks = args;
      walks.segments = taking(all, taken, are, p.packed);
      walks.cut = delta_scan_cut(p, plan, walks.segments);
      return walks;
    };
    DeltaReverseScanArgs<T> alone = walking(kAllButFirst, kAlone);
    alone.state_gradients = alone.corrections.data = nullptr;
    launch_scan(alone, plan.ends);
    launch_delta_chain(p, plan, all, workspace, stream);
    launch_scan(walking(kAll, kSideBySide), plan.reverse_scan);
  });
}

}  // namespace linescan
