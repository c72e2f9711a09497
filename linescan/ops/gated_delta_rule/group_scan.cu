// gated_delta_rule, the scan over the chunks of a sequence by warp groups: what chunk_scan.cu computes, for half
// types, 64 or 128 keys, where products of warp groups are to be had.
//
//   u = A (beta o (V - read_k o (K S)))        o = read_q o (Q S) + P u        S <- decay S + K^T (write o u)
//
// Held transposed as there: the sums of one product are, rounded, the left operand of the next. While a product
// is under way the warps send off what the chunk before gave.
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
  const int value = threadIdx.x / 32 % 4 * 16;  // of the block's 64
  T* const outbox = Tiles::outbox(cut.stages);
  GroupTurns turns(cut.stages);

  for (int64_t item = blockIdx.x; item < cut.items; item += gridDim.x) {
    const DeltaScanItem<kChunk> at(item, cut, args.sequences, in.value_heads);
    const int first_value = at.part * cut.block_values(), own_value = first_value + value;
    if (!computes) {
#pragma unroll 1
      for (int64_t number = 0; number < at.chunks; ++number) {
        const DeltaChunk chunk(at.walk, number * kChunk, kChunk);
        const Tiles tile(turns.take_to_fill());
        tile.fetch(in, chunk, at.head / in.group(), in.v, at.head, first_value, in.vectors,
                   args.records, at.row(number));
        turns.filling();
      }
      continue;
    }

    const bool stores = own_value < cut.padded_values;
    Sums<kKeys / 8> state;  // S^T
    load_state(state, args.initial, at.sequence, at.head, own_value, 0, in.V, in.K);
    FragmentA<T> left[kKeys / 16], u[kDepth], rounded[kDepth];
    round_sums(left, state);
    const auto send_out = [&](int64_t number) {
      const DeltaChunk chunk(at.walk, number * kChunk, kChunk);
      send_token_rows<Tiles>(chunk.rows(args.o, at.head) + own_value, chunk.row_step(args.o),
                             chunk.tokens, in.V - own_value, args.vectors, outbox);
    };
#pragma unroll 1
    for (int64_t number = 0; number < at.chunks; ++number) {
      const Tiles tile(turns.take_filled());
      Sums<kChunk / 8> sums, reads;
      group_begin(sums, reads);
      group_multiply<kColumns>(sums, left, GroupOperand<T>{tile.k}, false);
      group_commit();
      if constexpr (kOutputs) {
        group_multiply<kColumns>(reads, left, GroupOperand<T>{tile.q}, false);
        group_commit();
        if (number > 0) send_out(number - 1);
      } else if (stores) {
        store_state_rows<Tiles>(args.states + at.row(number) * cut.state_numbers(kKeys) +
                                    int64_t{1} * own_value * kKeys,
                                outbox, left);
      }
      // X^T = beta o (V - read_k o K S)^T
      FragmentA<T> v[kDepth];
#pragma unroll
      for (int t = 0; t < kDepth; ++t) load_a<kRows>(v[t], GroupOperand<T>{tile.v}, 16 * t);
      if constexpr (kOutputs)
        group_wait<1>(sums);
      else
        group_wait<0>(sums);
#pragma unroll
      for (int t = 0; t < kDepth; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 beta = tile.row(kBeta, t, half), read = tile.row(kReadK, t, half);
          const auto& of = sums.tiles[2 * t + half];
#pragma unroll
          for (int r = 0; r < 2; ++r)
            rounded[t].words[2 * half + r] = pair_from_floats<T>(
                beta.x * (value_of(v[t], r, 2 * half) - read.x * of[2 * r]),
                beta.y * (value_of(v[t], r, 2 * half + 1) - read.y * of[2 * r + 1]));
        }
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      const float decay = tile.rows[kDecay * kChunk];
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) state.tiles[i][j] *= decay;
      group_wait<0>(sums, reads);
#pragma unroll
      for (int t = 0; t < kDepth; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 write = tile.row(kWrite, t, half);
          const auto& of = sums.tiles[2 * t + half];
#pragma unroll
          for (int r = 0; r < 2; ++r)
            rounded[t].words[2 * half + r] =
                pair_from_floats<T>(write.x * of[2 * r], write.y * of[2 * r + 1]);
        }
      group_begin(state);
      group_multiply<kRows>(state, rounded, GroupOperand<T>{tile.k});
      group_commit();
      round_sums(u, sums);
      if constexpr (kOutputs) {
#pragma unroll
        for (int t = 0; t < kDepth; ++t)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float2 read = tile.row(kReadQ, t, half);
            auto& of = reads.tiles[2 * t + half];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              of[2 * r] *= read.x;
              of[2 * r + 1] *= read.y;
            }
          }
        group_begin(reads);
        group_multiply<kColumns>(reads, u, GroupOperand<T>{tile.P});
        group_commit();
        group_wait<1>(state);
        round_sums(left, state);
        group_wait<0>(reads);
        turns.used();
        round_sums(u, reads);
        put_token_rows<Tiles>(outbox, u);
      } else {
        if (stores) {
          put_token_rows<Tiles>(outbox, u);
          send_token_rows<Tiles>(
              args.corrections + at.row(number) * cut.correction_numbers(kChunk) + own_value,
              cut.padded_values, kChunk, cut.padded_values - own_value, true, outbox);
        }
        group_wait<0>(state);
        turns.used();
        round_sums(left, state);
      }
    }
    if constexpr (kOutputs) {
      if (at.chunks > 0) send_out(at.chunks - 1);
      store_state(state, args.final_state, at.sequence, at.head, own_value, 0, in.V, in.K);
    }
  }
  if (!computes) turns.filled_all();
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
