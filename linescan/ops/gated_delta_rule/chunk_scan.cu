// gated_delta_rule, the scan over the chunks of a sequence. With the state S in front of a chunk, and
// its record (gpu_record.cuh):
//
//   u = A (beta o (V - read_k o (K S)))        o = read_q o (Q S) + P u        S <- decay S + K^T (write o u)
//
// A block walks along one sequence and value head and carries 16 columns of S a warp; where K exceeds 128,
// several warps share those columns and add up their parts of K S and Q S. Everything is held
// transposed, S^T [16, K], u^T [16, tokens], so that the sums of one product are, in the same registers,
// the left operand of the next; right operands come from shared memory, where the next chunk arrives
// while this one is worked on.
//
// In a backward pass the walk leaves S in front of every chunk, and u, in the workspace.
//
// Numerics:  S and all sums in float32; operands of products are rounded to T (float32: three tf32 pieces).
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include <utility>

#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/gpu_group_deep.cuh"
#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_scan.cuh"

namespace linescan {
namespace {

using enum DeltaSegmentsTaken;
using enum DeltaSegmentsAre;

template <typename T, int kKeys, bool kOutputs>
__global__ void __launch_bounds__(32 * kDeltaScanWarps) scan_kernel(DeltaScanArgs<T> args) {
  using Tile = DeltaScanTiles<T, kKeys, kOutputs>;
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
    Sums<kOwn / 8> state;  // S^T
    if (place.computes)
      load_start(state, args.segments, at, args.initial, at.first, at.segment, own_value, place.key,
                 in.K);

    const auto fetch = [&](int64_t number) {
      Tile tile(cut, number);
      const DeltaChunk chunk(at.walk, number * kChunk, kChunk);
      tile.fetch_keys(place.loaders, tile.k, chunk, in.k, key_head, in);
      if constexpr (kOutputs) tile.fetch_keys(place.loaders, tile.q, chunk, in.q, key_head, in);
      const T* const v = at.units ? nullptr : chunk.rows(in.v, at.head) + at.first_column;
      load_tile(place.loaders, tile.v, tile.value_stride, v, v ? chunk.row_step(in.v) : 0, kChunk,
                v ? chunk.tokens : 0, cut.block_values(), at.columns - at.first_column, in.vectors);
      tile.fetch_record(place.loaders, args.records, at.row(number));
    };
    walk_chunks(at.chunks, cut.stages, false, place, fetch, [&](int64_t number) {
      const Tile tile(cut, number);
      const DeltaChunk chunk(at.walk, number * kChunk, kChunk);
      FragmentA<T> left[kOwn / 16];
#pragma unroll
      for (int k = 0; k < kOwn / 16; ++k) left[k] = operand<T>(state, k);
      if (!kOutputs && args.states)
        keep_state(state, args.states + at.row(number) * cut.state_numbers(kKeys), own_value,
                   place.key, cut.padded_values, kKeys);

      // X^T = beta o (V - read_k o K S)^T, as the operand of A
      Sums<kChunk / 8> sums;
      sums.clear();
      multiply_rows(sums, left, tile.k + place.key, Tile::kStride);
      add_key_parts<Tile::kKeyWarps>(sums, tile.exchange, place);
      FragmentA<T> right_side[kChunk / 16];
#pragma unroll
      for (int t = 0; t < kChunk / 16; ++t) {
        FragmentA<T> v;
        load_a_transposed(v, tile.v + 16 * t * tile.value_stride + place.value, tile.value_stride);
        right_side[t].fill([&](int r, int i) {
          const int token = 16 * t + fragment_k(place.q, i);
          const float ks = sums.tiles[2 * t + (i >> 1)][2 * r + (i & 1)];
          return tile.row(kBeta, token) * (value_of(v, r, i) - tile.row(kReadK, token) * ks);
        });
      }
      // u^T
      sums.clear();
      multiply_rows<true>(sums, right_side, tile.A, Tile::kSquare);
      FragmentA<T> u[kChunk / 16], written[kChunk / 16];
#pragma unroll
      for (int t = 0; t < kChunk / 16; ++t) {
        u[t] = operand<T>(sums, t);
        written[t].fill([&](int r, int i) {
          return tile.row(kWrite, 16 * t + fragment_k(place.q, i)) *
                 sums.tiles[2 * t + (i >> 1)][2 * r + (i & 1)];
        });
      }
      if constexpr (kOutputs) {
        Sums<kChunk / 8> out;
        out.clear();
        multiply_rows(out, left, tile.q + place.key, Tile::kStride);
        add_key_parts<Tile::kKeyWarps>(out, tile.exchange, place);
        if (place.key == 0) {
          out = out.mapped([&](float x, int, int token) { return tile.row(kReadQ, token) * x; });
          multiply_rows<true>(out, u, tile.P, Tile::kSquare);
          store_tokens(chunk.rows(args.o, at.head), chunk.row_step(args.o), chunk.tokens, out,
                       own_value, in.V, args.pairs);
        }
      } else if (args.corrections && place.key == 0) {
        store_tokens(args.corrections + at.row(number) * cut.correction_step, cut.padded_values,
                     kChunk, sums, own_value, cut.padded_values, true);
      }
      const float decay = tile.rows[kDecay * kChunk];
      state = state.mapped([&](float x, int, int) { return decay * x; });
      multiply_columns(state, written, tile.k + place.key, Tile::kStride);
    });
    if ((kOutputs || !args.states) && place.computes)
      store_end(state, args.segments, at, args.final_state, at.last, at.segment + 1, own_value,
                place.key, in.K);
  }
}

}  // namespace

void launch_delta_scan(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGpuPlan& plan,
                       const DeltaKept& kept, std::byte* workspace, GpuStream stream) {
  const bool outputs = plan.pass == Pass::kForward;
  dispatch_delta(p.q.dtype, plan.padded_keys, [&]<typename T, int kKeys>() {
    const bool v_first = p.inputs.state_v_first;
    DeltaScanArgs<T> args = {
        delta_inputs<T>(p),
        delta_sequences(p, workspace),
        delta_states(p.initial_state, v_first),
        delta_states(p.final_state, v_first),
        delta_rows<T>(p.o),
        delta_scan_cut(p, plan),
        kept.records,
        p.o && rows_are_pairs(p.o),
        p.o && rows_are_vectors(p.o),
        reinterpret_cast<T*>(outputs ? kept.states : workspace + plan.states_at),
        reinterpret_cast<T*>(outputs ? kept.corrections : workspace + plan.corrections_at),
        outputs && kept.states ? plan.piece.batch : 0,
        {},
        {}};
    const auto launch_scan = [&](DeltaScanArgs<T> args, bool outputs, const DeltaLaunch& shape) {
      args.shared = delta_shared_walks(p, plan, args.cut, args.segments, shape, workspace);
      if constexpr (sizeof(T) == 2) {
        if (plan.deep_groups)
          return launch_delta_group_deep_scan(args, outputs, shape_of(shape), stream);
        if (plan.makes_records)
          return launch_delta_group_recording_scan(args, kKeys, shape_of(shape), stream);
        if (plan.warp_groups)
          return launch_delta_group_scan(args, outputs, kKeys, shape_of(shape), stream);
      }
      launch("gated_delta_rule, scan",
             outputs ? scan_kernel<T, kKeys, true> : scan_kernel<T, kKeys, false>, shape_of(shape),
             stream, args);
    };
    if (!kept.boundaries || delta_segment_count(p, plan) == 1)
      return launch_scan(args, outputs, plan.scan);
    const DeltaSegments all =
        delta_segments(p, plan, kept.boundaries, plan.kept_step, kept.turned, workspace);
    const auto walking = [&](const DeltaSegments& segments, bool units = false) {
      DeltaScanArgs<T> walks = args;
      walks.segments = segments;
      walks.cut = delta_scan_cut(p, plan, segments, units);
      return walks;
    };
    const auto some = [&](DeltaSegmentsTaken taken, DeltaSegmentsAre are) {
      return taking(all, taken, are, p.packed);
    };
    if (outputs && !plan.piece.split) {
      DeltaSegments walk = all;
      walk.count = 1;
      if (plan.warp_groups || plan.deep_groups) {
        std::swap(walk.tokens, walk.stop_tokens);
        return launch_scan(walking(walk), true, plan.scan);
      }
      // The other kernels have no registers for boundaries on the way.
      for (; walk.first < all.count; ++walk.first) launch_scan(walking(walk), true, plan.scan);
      return;
    }
    if (outputs) {
      DeltaScanArgs<T> alone = walking(some(kAllButLast, kAlone), /*units=*/true);
      alone.states = alone.corrections = nullptr;
      launch_scan(alone, false, plan.ends);
      launch_delta_chain(p, plan, all, workspace, stream);
    }
    // Where the final state takes the place of the initial one, segments that write it wait for those that read.
    const bool in_place = outputs && p.final_state && p.final_state.data == p.initial_state.data;
    launch_scan(walking(some(in_place ? kAllButLast : kAll, kSideBySide)), outputs, plan.scan);
    if (in_place) launch_scan(walking(some(kLast, kSideBySide)), outputs, plan.scan);
  });
}

}  // namespace linescan
