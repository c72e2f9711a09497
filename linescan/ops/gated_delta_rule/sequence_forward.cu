// gated_delta_rule, outputs and final states where a warp walks a whole sequence (gpu_sequence.cuh).
//
//   u = A (beta o (V - read_k o (K S)))        o = read_q o (Q S) + P u        S <- decay S + K^T (write o u)
//
// Everything that is read once is read once: no records, no states in memory.
//
// Numerics:  S and all sums in float32; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_sequence.cuh"

namespace linescan {
namespace {

template <typename T>
struct SequenceForwardArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  DeltaStates initial, final_state;
  SequenceTensor<const T> k, v, q;
  SequenceTensor<T> o;
  int64_t items;
};

template <typename T, bool kVectors>
__global__ void __launch_bounds__(32 * DeltaLayout::kSequenceWarps, 4)
    sequence_forward_kernel(SequenceForwardArgs<T> args) {
  const DeltaInputs<T>& in = args.in;
  const SequenceTiles<T, false> tiles;
  SequenceRows<const T, kVectors> k = {args.k}, v = {args.v}, q = {args.q};
  SequenceRows<T, kVectors> o = {args.o};
  SequenceGates<T> gates = {in, args.sequences.reverse, &tiles.row(kGateParameters, 0)};
  const int64_t warps = int64_t{1} * gridDim.x * DeltaLayout::kSequenceWarps;
#pragma unroll 1
  for (int64_t item = int64_t{1} * blockIdx.x * DeltaLayout::kSequenceWarps + threadIdx.x / 32;
       item < args.items; item += warps) {
    const int64_t sequence = item / in.value_heads;
    const int head = static_cast<int>(item % in.value_heads), key_head = head / in.group();
    const DeltaWalk walk = args.sequences.walk(sequence);
    const SequenceChunks chunks(walk);
    k.start(walk, 0, key_head);
    q.start(walk, 0, key_head);
    v.start(walk, 0, head);
    o.start(walk, 0, head);
    gates.start(walk, 0, head);
    const auto fetch = [&](int number) {
      const int tokens = chunks.tokens(number);
      const SequenceStage<T> stage = tiles.stage(number);
      k.fetch(stage.tile(kTileK), tokens);
      v.fetch(stage.tile(kTileV), tokens);
      q.fetch(stage.tile(kTileQ), tokens);
      commit_copies();
      const uint32_t gate = gates.fetch(tokens);
      k.move(1);
      v.move(1);
      q.move(1);
      gates.move(1);
      return gate;
    };
    Sums<4> state[2];
    load_square(state, tiles, args.initial, sequence, head, in.V, in.K);
    uint32_t next = fetch(0);
#pragma unroll 1
    for (int number = 0; number < chunks.count; ++number) {
      wait_copies<0>();
      __syncwarp();
      const int tokens = chunks.tokens(number);
      const float gate = gates.value_of(next, tokens);
      next = fetch(number + 1);  // nothing of a chunk that there is not
      const SequenceStage<T> stage = tiles.stage(number);
      SequenceChunk<T> own;
      own.template prepare<true>(tiles, stage, gate, in, tokens);
      const FragmentA<T> P = operand<T>(own.P, 0);
      SquareOperand<T> rounded;
      rounded.round(state);
      const TurnedTokens u = own.corrections(tiles, stage, rounded);
      TurnedTokens out;
      out.clear();
      read_state(out, rounded, stage.columns(kTileQ));
      out.map([&](float x, int, int, int, int token) { return tiles.row(kTokenReadQ, token) * x; });
      TurnedOperand<T> turned;
      turned.round(u);
      mix_tokens(out, turned, P);
      advance_state(state, tiles, own.decay, u, stage.tile(kTileK));
      turned.round(out);
      o.send(stage.tile(kTileQ), turned.turned(), tokens);
      o.move(1);
      __syncwarp();
    }
    wait_copies<0>();
    store_square(state, tiles, args.final_state, sequence, head, in.V, in.K);
  }
}

}  // namespace

void launch_delta_sequence_forward(const GatedDeltaRuleProblem& p,
                                   const GatedDeltaRuleGpuPlan& plan, std::byte* workspace,
                                   GpuStream stream) {
  const bool v_first = p.inputs.state_v_first;
  const GatedDeltaRuleSize size = size_of(p);
  dispatch_data(p.q.dtype, [&]<typename T>() {
    if constexpr (sizeof(T) == 2) {
      const SequenceForwardArgs<T> args = {delta_inputs<T>(p),
                                           delta_sequences(p, workspace),
                                           delta_states(p.initial_state, v_first),
                                           delta_states(p.final_state, v_first),
                                           {p.k, p.reverse},
                                           {p.v, p.reverse},
                                           {p.q, p.reverse},
                                           {p.o, p.reverse},
                                           size.sequences * size.value_heads};
      launch("gated_delta_rule, sequences",
             args.in.vectors && rows_are_vectors(p.o) ? sequence_forward_kernel<T, true>
                                                      : sequence_forward_kernel<T, false>,
             shape_of(plan.scan), stream, args);
    }
  });
}

}  // namespace linescan
