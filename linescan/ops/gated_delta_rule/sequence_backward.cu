// gated_delta_rule, all gradients where a warp walks a whole sequence (gpu_sequence.cuh): once forward, to keep the
// state in front of every chunk, then in reverse. README.md has the equations.
//
// A warp keeps rounded states, and A, in a slot of its own, so that they stay in the second-level cache; of packed
// sequences, whose lengths nobody knows beforehand, every chunk has a place.
//
// q and k stay as they came, as in chunk_gradients.cu.
//
// Numerics:  sums and the state's gradient in float32; operands of products are rounded to T. The gate's
//            gradient is a sum over what passes over a token, not a difference of sums over the chunk.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_gate_gradient.cuh"
#include "linescan/ops/gated_delta_rule/gpu_sequence.cuh"

namespace linescan {
namespace {

template <typename T>
struct SequenceBackwardArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  DeltaStates initial, upstream, initial_gradient;
  SequenceTensor<const T> k, v, q, o;  // o: upstream
  SequenceTensor<T> to_k, to_v, to_q;
  DeltaRows<float> g;
  DeltaRows<unsigned char> beta;
  int64_t items, slot_chunks;
  uint4* kept;            // kPacks a chunk
  float* parameter_sums;  // [sequences, 2, value_heads]: for A_log and dt_bias
};

// What is kept of a chunk, in packs of 16 bytes: five for every lane, as the lanes hold them.
constexpr int kPacks = DeltaLayout::kSequenceKeptBytes / 16, kLanePacks = kPacks / 32;

template <typename T>
__device__ __forceinline__ void keep(uint4* to, const SquareOperand<T>& state,
                                     const FragmentA<T>& A) {
#pragma unroll
  for (int i = 0; i < kLanePacks; ++i) {
    const uint32_t(&words)[4] = i < 4 ? state.parts[i / 2][i % 2].words : A.words;
    to[32 * i + threadIdx.x % 32] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}
template <typename T>
__device__ __forceinline__ void read_kept(SquareOperand<T>& state, FragmentA<T>& A,
                                          const uint4* from) {
#pragma unroll
  for (int i = 0; i < kLanePacks; ++i) {
    const uint4 words = from[32 * i + threadIdx.x % 32];
    uint32_t(&to)[4] = i < 4 ? state.parts[i / 2][i % 2].words : A.words;
    to[0] = words.x;
    to[1] = words.y;
    to[2] = words.z;
    to[3] = words.w;
  }
}

// The numbers of sums [16 tokens, 32], and of an operand where these have theirs.
__device__ __forceinline__ float number_at(const Sums<4>& sums, int tile, int j) {
  return sums.tiles[tile][j];
}
template <typename T>
__device__ __forceinline__ float number_at(const TokenOperand<T>& tokens, int tile, int j) {
  return value_of(tokens.parts[tile >> 1], j >> 1, 2 * (tile & 1) + (j & 1));
}
// sum[row] += this lane's part of the row's a . b
template <class A, class B>
__device__ __forceinline__ void add_dots(float (&sum)[2], const A& a, const B& b) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      sum[j >> 1] = fmaf(number_at(a, i, j), number_at(b, i, j), sum[j >> 1]);
}

// The sums of numbers in front of a lane's two in a row of 8, over the four lanes that share it; and of all.
struct RowPrefix {
  float before[2], all;

  __device__ __forceinline__ RowPrefix(float first, float second) {
    const int q = threadIdx.x % 4;
    float sum = first + second;
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
      const float left = __shfl_up_sync(kAllLanes, sum, by, 4);
      if (q >= by) sum += left;
    }
    all = __shfl_sync(kAllLanes, sum, 3, 4);
    const float left = __shfl_up_sync(kAllLanes, sum, 1, 4);
    before[0] = q == 0 ? 0.f : left;
    before[1] = before[0] + first;
  }
};

// row[t] <- everything that passes over token t: `over` from tokens i >= t to tokens j < t, reads of the tokens
// from t on, writes of those in front of it. reads and writes: of tokens g and 8 + g.
__device__ __forceinline__ void sum_over_tokens(float* row, const Sums<2>& over,
                                                const float (&reads)[2], const float (&writes)[2]) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const RowPrefix upper(over.tiles[0][0], over.tiles[0][1]);
  const RowPrefix left(over.tiles[0][2], over.tiles[0][3]);
  const RowPrefix lower(over.tiles[1][2], over.tiles[1][3]);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const bool behind = g >= 2 * q + c;
    float of_upper = (behind ? upper.before[c] + reads[0] : writes[0]) + left.before[c] + reads[1];
    float of_lower = writes[0] + (behind ? left.all + lower.before[c] + reads[1] : writes[1]);
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      of_upper += __shfl_xor_sync(kAllLanes, of_upper, mask);
      of_lower += __shfl_xor_sync(kAllLanes, of_lower, mask);
    }
    if (g == 0) {
      row[2 * q + c] = of_upper;
      row[8 + 2 * q + c] = of_lower;
    }
  }
}

// The gradient of rows x from n gy (chunk_gradients.cu), rounded.
template <typename T>
__device__ __forceinline__ TokenOperand<T> through_norm(Sums<4>& sums, const TokenOperand<T>& x,
                                                        bool norm, const float* squares) {
  if (norm) {
    const int g = threadIdx.x % 32 / 4;
    float along[2] = {};
    add_dots(along, x, sums);
#pragma unroll
    for (int r = 0; r < 2; ++r) along[r] = sum_of_quad(along[r]) / (squares[8 * r + g] + 1e-6f);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sums.tiles[i][j] = fmaf(-along[j >> 1], number_at(x, i, j), sums.tiles[i][j]);
  }
  TokenOperand<T> result;
#pragma unroll
  for (int k = 0; k < 2; ++k) result.parts[k] = operand<T>(sums, k);
  return result;
}

// ---- A chunk in reverse -----------------------------------------------------------------------------

// gX^T = (A^T gu)^T with gu = P^T go + write o (K gS').
template <typename T, class Tiles>
__device__ __forceinline__ TurnedTokens gradient_of_corrections(const SequenceChunk<T>& own,
                                                                const Tiles& tiles,
                                                                const SequenceStage<T>& stage,
                                                                const SquareOperand<T>& gS,
                                                                const TurnedOperand<T>& go) {
  TurnedTokens sums;
  sums.clear();
  read_state(sums, gS, stage.columns(kTileK));
  sums.map([&](float x, int, int, int, int token) { return tiles.row(kTokenWrite, token) * x; });
  mix_tokens(sums, go, transposed(operand<T>(own.P, 0)));
  TurnedOperand<T> gu;
  gu.round(sums);
  sums.clear();
  mix_tokens(sums, gu, transposed(own.A));
  return sums;
}

// <gS', S>, this lane's part.
template <typename T>
__device__ __forceinline__ float dot_states(const Sums<4> (&gS)[2], const SquareOperand<T>& S) {
  float sum = 0;
#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        sum = fmaf(gS[m].tiles[i][j], value_of(S.parts[m][i >> 1], j >> 1, 2 * (i & 1) + (j & 1)),
                   sum);
  return sum;
}

// gS^T <- decay gS'^T + (read_q o go)^T Q - (beta o read_k o gX)^T K
template <typename T, class Tiles>
__device__ __forceinline__ void take_back_state(Sums<4> (&gS)[2], const Tiles& tiles,
                                                const SequenceStage<T>& stage, float decay,
                                                const TurnedOperand<T>& go,
                                                const TurnedTokens& gx) {
  TurnedOperand<T> scaled;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
    gS[m] = gS[m].mapped([&](float x, int, int) { return decay * x; });
    scaled.parts[m].fill([&](int r, int i) {
      return tiles.row(kTokenReadQ, fragment_k(threadIdx.x % 4, i)) * value_of(go.parts[m], r, i);
    });
  }
  write_state(gS, scaled, stage.tile(kTileQ));
  scaled.round(
      gx, [&](int token) { return -tiles.row(kTokenBeta, token) * tiles.row(kTokenReadK, token); });
  write_state(gS, scaled, stage.tile(kTileK));
}

// What tokens g and 8 + g read from the states and write into them, and what their betas get.
struct TokenTerms {
  float reads[2] = {}, writes[2] = {}, to_beta[2] = {};
};

// Tokens with tokens: gq and gk get H K, (M + M^T) K and H^T Q. Returns what passes over the tokens between a pair.
template <typename T, class Tiles>
__device__ __forceinline__ Sums<2> take_back_pairs(Sums<4>& gq, Sums<4>& gk, TokenTerms& terms,
                                                   const SequenceChunk<T>& own, const Tiles& tiles,
                                                   const SequenceStage<T>& stage,
                                                   const TokenOperand<T>& go,
                                                   const TokenOperand<T>& gx,
                                                   const TokenOperand<T>& u) {
  const TokenColumns<T> columns(u);
  Sums<2> over, M;
  over.clear();
  multiply_tokens(over, go, columns);
  const Sums<2> H = lower_blocks([&](int tile, int n, int i, int) {
    return own.E.tiles[tile][n] * tiles.row(kTokenFactorQ, i) * over.tiles[tile][n];
  });
  M.clear();
  multiply_tokens(M, gx, columns);
  over = lower_blocks([&](int tile, int n, int i, int) {
    const float corrected = M.tiles[tile][n] * own.kk.tiles[tile][n];
    terms.to_beta[n >> 1] -= corrected;
    return over.tiles[tile][n] * own.P.tiles[tile][n] - tiles.row(kTokenBeta, i) * corrected;
  });
  M = lower_blocks([&](int tile, int n, int i, int j) {
    return i == j ? 0.f
                  : -tiles.row(kTokenBeta, i) * tiles.row(kTokenFactorK, i) * own.E.tiles[tile][n] *
                        M.tiles[tile][n];
  });
  const FragmentA<T> from_h = operand<T>(H, 0), from_m = operand<T>(M, 0);
  const FragmentA<T> from_ht = transposed(from_h), from_mt = transposed(from_m);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    FragmentB<T> b[2];
    load_columns(b, stage.tile(kTileK), 16 * n);
    multiply_add(gq, n, from_h, b);
    multiply_add(gk, n, from_m, b);
    multiply_add(gk, n, from_mt, b);
    load_columns(b, stage.tile(kTileQ), 16 * n);
    multiply_add(gk, n, from_ht, b);
  }
  return over;
}

template <typename T, bool kVectors>
__global__ void __launch_bounds__(32 * DeltaLayout::kSequenceWarps, 2)
    sequence_backward_kernel(SequenceBackwardArgs<T> args) {
  using Tiles = SequenceTiles<T, true>;
  const DeltaInputs<T>& in = args.in;
  const Tiles tiles;
  const int lane = threadIdx.x % 32, g = lane / 4;
  const int64_t warp = int64_t{1} * blockIdx.x * DeltaLayout::kSequenceWarps + threadIdx.x / 32;
  SequenceRows<const T, kVectors> k = {args.k}, v = {args.v}, q = {args.q}, o = {args.o};
  SequenceRows<T, kVectors> to_k = {args.to_k}, to_v = {args.to_v}, to_q = {args.to_q};
  SequenceGates<T> gates = {in, args.sequences.reverse, &tiles.row(kGateParameters, 0)};
  const int64_t warps = int64_t{1} * gridDim.x * DeltaLayout::kSequenceWarps;
#pragma unroll 1
  for (int64_t item = warp; item < args.items; item += warps) {
    const int64_t sequence = item / in.value_heads;
    const int head = static_cast<int>(item % in.value_heads);
    const DeltaWalk walk = args.sequences.walk(sequence);
    const SequenceChunks chunks(walk);
    const int64_t step = args.slot_chunks > 0 ? 1 : in.value_heads;
    uint4* const kept =
        args.kept +
        kPacks *
            (args.slot_chunks > 0
                 ? warp * args.slot_chunks
                 : args.sequences.first_chunk(sequence, kSequenceTokens) * in.value_heads + head);
    const auto kept_at = [&](int number) { return kept + kPacks * step * number; };

    // ---- Forward, for the states ----
    Sums<4> state[2];
    load_square(state, tiles, args.initial, sequence, head, in.V, in.K);
    k.start(walk, 0, head);
    v.start(walk, 0, head);
    gates.start(walk, 0, head);
    const auto fetch_keys = [&](int number, int by) {
      const int tokens = chunks.tokens(number);
      const SequenceStage<T> stage = tiles.stage(number);
      k.fetch(stage.tile(kTileK), tokens);
      v.fetch(stage.tile(kTileV), tokens);
      const uint32_t gate = gates.fetch(tokens);
      k.move(by);
      v.move(by);
      gates.move(by);
      return gate;
    };
    uint32_t next = fetch_keys(0, 1);
    commit_copies();
#pragma unroll 1
    for (int number = 0; number < chunks.count; ++number) {
      wait_copies<0>();
      __syncwarp();
      const int tokens = chunks.tokens(number);
      const float gate = gates.value_of(next, tokens);
      next = fetch_keys(number + 1, 1);
      commit_copies();
      const SequenceStage<T> stage = tiles.stage(number);
      SequenceChunk<T> own;
      own.template prepare<false>(tiles, stage, gate, in, tokens);
      SquareOperand<T> rounded;
      rounded.round(state);
      keep(kept_at(number), rounded, own.A);
      const TurnedTokens u = own.corrections(tiles, stage, rounded);
      advance_state(state, tiles, own.decay, u, stage.tile(kTileK));
      __syncwarp();
    }
    wait_copies<0>();
    __syncwarp();
    __threadfence();  // copies from now on see the states

    // ---- In reverse ----
    load_square(state, tiles, args.upstream, sequence, head, in.V, in.K);  // gS^T
    const int last = chunks.count - 1;
    for (SequenceRows<const T, kVectors>* rows : {&k, &v, &q, &o}) rows->start(walk, last, head);
    for (SequenceRows<T, kVectors>* rows : {&to_q, &to_k, &to_v}) rows->start(walk, last, head);
    gates.start(walk, last, head);
    const auto fetch = [&](int number) {
      const uint32_t gate = fetch_keys(number, -1);
      const int tokens = chunks.tokens(number);
      const SequenceStage<T> stage = tiles.stage(number);
      q.fetch(stage.tile(kTileQ), tokens);
      o.fetch(stage.tile(kTileGo), args.o.rows.data ? tokens : 0);
      q.move(-1);
      o.move(-1);
      if (tokens > 0)
#pragma unroll
        for (int i = 0; i < kLanePacks; ++i)
          copy_async<16>(stage.kept() + 32 * i + lane, kept_at(number) + 32 * i + lane);
      commit_copies();
      return gate;
    };
    ParameterTerms parameters;
    __syncwarp();
    next = fetch(last);
#pragma unroll 1
    for (int number = last; number >= 0; --number) {
      wait_copies<0>();
      __syncwarp();
      const int tokens = chunks.tokens(number);
      const float gate = gates.value_of(next, tokens);
      next = fetch(number - 1);
      const SequenceStage<T> stage = tiles.stage(number);
      const auto row = [&](SequenceRow which, int r) { return tiles.row(which, 8 * r + g); };
      SequenceChunk<T> own;
      SquareOperand<T> S;
      read_kept(S, own.A, stage.kept());
      own.template prepare<true, false>(tiles, stage, gate, in, tokens);
      TurnedOperand<T> turned;
      turned.round(own.corrections(tiles, stage, S));
      const TokenOperand<T> u = turned.turned();

      SquareOperand<T> gS;
      gS.round(state);
      TurnedOperand<T> go_turned;
      go_turned.load(stage.tile(kTileGo));
      const TurnedTokens gx = gradient_of_corrections(own, tiles, stage, gS, go_turned);
      turned.round(gx);
      const TokenOperand<T> of_gx = turned.turned();

      TokenTerms terms;
      add_dots(terms.to_beta, of_gx, stage.operand(kTileV));
      turned.round(gx, [&](int token) { return tiles.row(kTokenBeta, token); });
      if (args.to_v.rows.data) to_v.send(stage.tile(kTileV), turned.turned(), tokens);

      Sums<4> gk, gq;
      gk.clear();
      read_rows(gk, u, gS.turned());
      gk = gk.mapped([&](float x, int r, int) { return row(kTokenWrite, r) * x; });
      const TokenOperand<T> of_k = stage.operand(kTileK);
      add_dots(terms.writes, of_k, gk);
      const float state_dot = dot_states(state, S);
      S = S.turned();
      gq.clear();
      read_rows(gq, of_gx, S);
      gq = gq.mapped([&](float x, int r, int) { return row(kTokenReadK, r) * x; });
      float read[2] = {};
      add_dots(read, of_k, gq);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        terms.to_beta[r] -= read[r];
        terms.reads[r] = -row(kTokenBeta, r) * read[r];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) gk.tiles[i][j] -= row(kTokenBeta, j >> 1) * gq.tiles[i][j];
      const TokenOperand<T> go = stage.operand(kTileGo);
      gq.clear();
      read_rows(gq, go, S);
      gq = gq.mapped([&](float x, int r, int) { return row(kTokenReadQ, r) * x; });
      add_dots(terms.reads, stage.operand(kTileQ), gq);

      take_back_state(state, tiles, stage, own.decay, go_turned, gx);
      const Sums<2> over = take_back_pairs(gq, gk, terms, own, tiles, stage, go, of_gx, u);
      if (args.to_q.rows.data)
        to_q.send(stage.tile(kTileQ),
                  through_norm(gq, stage.operand(kTileQ), in.norm, &tiles.row(kSquareQ, 0)),
                  tokens);
      if (args.to_k.rows.data)
        to_k.send(stage.tile(kTileK),
                  through_norm(gk, stage.operand(kTileK), in.norm, &tiles.row(kSquareK, 0)),
                  tokens);
      to_q.move(-1);
      to_k.move(-1);
      to_v.move(-1);

      // Gates and betas; rows that are not needed any more hold their sums.
      __syncwarp();
      const float all_of_state = sum_of_lanes(state_dot, 32);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        terms.reads[r] = sum_of_quad(terms.reads[r]);
        terms.writes[r] = sum_of_quad(terms.writes[r]);
        terms.to_beta[r] = sum_of_quad(terms.to_beta[r]);
        if (lane % 4 == 0) tiles.row(kAhead, 8 * r + g) = terms.to_beta[r];
      }
      sum_over_tokens(&tiles.row(kUpto, 0), over, terms.reads, terms.writes);
      __syncwarp();
      if (lane < tokens) {
        const ParameterTerms of_token = store_token_gradients(
            in, args.g, args.beta, walk.batch, walk.token(int64_t{number} * kSequenceTokens + lane),
            head, fmaf(own.decay, all_of_state, tiles.row(kUpto, lane)), tiles.row(kAhead, lane));
        parameters.A_log += of_token.A_log;
        parameters.dt_bias += of_token.dt_bias;
      }
      __syncwarp();
    }
    wait_copies<0>();
    store_square(state, tiles, args.initial_gradient, sequence, head, in.V, in.K);
    if (in.A_log) {
      parameters.A_log = sum_of_lanes(parameters.A_log, 32);
      parameters.dt_bias = sum_of_lanes(parameters.dt_bias, 32);
      if (lane < 2)
        args.parameter_sums[(2 * sequence + lane) * in.value_heads + head] =
            lane == 0 ? parameters.A_log : parameters.dt_bias;
    }
  }
}

}  // namespace

void launch_delta_sequence_backward(const GatedDeltaRuleProblem& p,
                                    const GatedDeltaRuleGradients& gradients,
                                    const GatedDeltaRuleGpuPlan& plan, std::byte* workspace,
                                    GpuStream stream) {
  const bool v_first = p.inputs.state_v_first;
  const GatedDeltaRuleSize size = size_of(p);
  bool vectors = true;
  for (const TensorView* tensor :
       {&p.q, &p.k, &p.v, &gradients.o, &gradients.q, &gradients.k, &gradients.v})
    vectors = vectors && rows_are_vectors(*tensor);
  dispatch_data(p.q.dtype, [&]<typename T>() {
    if constexpr (sizeof(T) == 2)
      launch("gated_delta_rule, sequences backward",
             vectors ? sequence_backward_kernel<T, true> : sequence_backward_kernel<T, false>,
             shape_of(plan.scan), stream,
             SequenceBackwardArgs<T>{delta_inputs<T>(p),
                                     delta_sequences(p, workspace),
                                     delta_states(p.initial_state, v_first),
                                     delta_states(gradients.final_state, v_first),
                                     delta_states(gradients.initial_state, v_first),
                                     {p.k, p.reverse},
                                     {p.v, p.reverse},
                                     {p.q, p.reverse},
                                     {gradients.o, p.reverse},
                                     {gradients.k, p.reverse},
                                     {gradients.v, p.reverse},
                                     {gradients.q, p.reverse},
                                     delta_rows<float>(gradients.g),
                                     delta_rows<unsigned char>(gradients.beta),
                                     size.sequences * size.value_heads,
                                     plan.slot_chunks,
                                     reinterpret_cast<uint4*>(workspace + plan.states_at),
                                     delta_parameter_sums(plan, workspace)});
  });
}

}  // namespace linescan
