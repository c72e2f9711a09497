// gated_delta_rule, the gradients of what went in, chunk by chunk: the states S in front of the chunk, gS'
// behind it, u and gX are known (chunk_scan.cu, reverse_scan.cu). README.md has the equations.
//
// A block takes a chunk and a head of q and k, and goes through the value heads that read them; gradients
// of q and k add up in registers. A warp owns 16 tokens and half of the keys, 64 at most, of both, and of the products
// of tokens with tokens some 16 x 16 tiles below the diagonal. V goes by in slices.
//
// q and k stay as they came: the factors of their norms are in H, M and the record's rows, so that what adds
// up is n gy for a row x with y = n x, and gx = n gy - n^2 x (x . n gy).
//
// Numerics:  sums in float32; operands of products are rounded to T (float32: three tf32 pieces). The gate's
//            gradient is a sum over what passes over a token, not a difference of sums over the chunk.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/gpu_gate_gradient.cuh"
#include "linescan/ops/gated_delta_rule/gpu_gradients.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"

namespace linescan {
namespace {

template <typename T, int kKeys>
struct GradientTiles : DeltaSizes<T, kKeys> {
  using Sizes = DeltaSizes<T, kKeys>;
  using Sizes::kChunk, Sizes::kLayout, Sizes::kSquare, Sizes::kStride;
  static constexpr int kOver = kChunk + 1;
  static constexpr int kSlice = kLayout.slice(), kSliceStride = kLayout.slice_stride();
  static constexpr int kOwn = kLayout.gradient_keys(), kKeyWarps = kLayout.gradient_key_warps();
  static constexpr int kThreads = kLayout.gradient_threads();
  static constexpr int64_t kStageBytes = kLayout.gradient_stage_bytes();
  static constexpr int64_t kPairsBytes = kLayout.pairs_bytes();
  static constexpr int64_t kOnlyStageBytes = kStageBytes > kPairsBytes ? kStageBytes : kPairsBytes;

  StridedTile<T, kStride> k, q;
  T *H, *M;
  float *over, *rows, *own, *parts;
  DeltaDecays<kChunk>* decays;
  unsigned char* stages;

  __device__ __forceinline__ explicit GradientTiles(int stage_count) {
    k.data = reinterpret_cast<T*>(shared_memory());
    q.data = k.data + kChunk * kStride;
    H = q.data + kChunk * kStride;
    stages = reinterpret_cast<unsigned char*>(H + kChunk * kSquare);
    M = reinterpret_cast<T*>(stage_count == 1 ? stages : stages + stage_count * kStageBytes);
    over = reinterpret_cast<float*>(M + kChunk * kSquare);
    decays = reinterpret_cast<DeltaDecays<kChunk>*>(
        stages + (stage_count == 1 ? kOnlyStageBytes : stage_count * kStageBytes + kPairsBytes));
    rows = reinterpret_cast<float*>(decays + 1);
    own = rows + 2 * kDeltaRecordRows * kChunk;
    parts = own + kDeltaRecordRows * kChunk;
  }
  // Of value head h, or of the next.
  __device__ __forceinline__ float* record_rows(int h) const {
    return rows + h % 2 * kDeltaRecordRows * kChunk;
  }
  static __device__ __forceinline__ int thread() { return static_cast<int>(threadIdx.x); }
  static __device__ __forceinline__ void meet() { __syncthreads(); }
  static constexpr int kShares = 1;
  __device__ __forceinline__ float* share(GradientRow which, int = 0) const {
    return own + which * kChunk;
  }
};

// One slice of V in a stage.
template <class Tiles, typename T>
struct GradientStage {
  T *S, *gS, *slices[3];

  __device__ __forceinline__ GradientStage(const Tiles& tiles, int number) {
    S = reinterpret_cast<T*>(tiles.stages + number * Tiles::kStageBytes);
    gS = S + Tiles::kSlice * Tiles::kStride;
    slices[0] = gS + Tiles::kSlice * Tiles::kStride;
    slices[1] = slices[0] + Tiles::kChunk * Tiles::kSliceStride;
    slices[2] = slices[1] + Tiles::kChunk * Tiles::kSliceStride;
  }
};

// What passes over a token from those behind it to those in front of it, a share a thread of the token, and the
// rows' sums over keys as store_gate_and_beta() wants them. Uses up `over` and `parts`.
template <class Tiles>
__device__ __forceinline__ float pairs_over_token(const Tiles& tiles, const float* rows) {
  constexpr int kChunk = Tiles::kChunk, kPart = kChunk * Tiles::kKeyWarps;
  constexpr int kLanes = Tiles::kThreads / kChunk, kLaneTokens = kChunk / kLanes;  // of a token
  const int own_token = threadIdx.x / kLanes, own_lane = threadIdx.x % kLanes;
  // over[i, j] <- sum of row i in front of j; kLaneTokens columns a lane
  float* const over_row = tiles.over + own_token * Tiles::kOver;
  const int first = own_lane * kLaneTokens, last = min(first + kLaneTokens, own_token + 1);
  float sum = 0;
  for (int j = first; j < last; ++j) sum += over_row[j];
  float before = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const float of_lane = __shfl_sync(kAllLanes, sum, lane, kLanes);
    if (lane < own_lane) before += of_lane;
  }
  for (int j = first; j < last; ++j) {
    const float here = over_row[j];
    over_row[j] = before;
    before += here;
  }
  if (own_lane == 0) {
    const auto part = [&](int which) {
      return sum_of_parts<Tiles::kKeyWarps>(tiles.parts + which * kPart, own_token);
    };
    const float read = part(2);
    tiles.share(kReads)[own_token] = part(0) - rows[kBeta * kChunk + own_token] * read;
    tiles.share(kWrites)[own_token] = part(1);
    tiles.share(kToBeta)[own_token] = part(3) - read;
  }
  __syncthreads();
  float pairs = 0;
  for (int i = max(first, own_token); i < first + kLaneTokens; ++i)
    pairs += tiles.over[i * Tiles::kOver + own_token];
  return pairs;
}

template <typename T, int kKeys>
__global__ void __launch_bounds__(GradientTiles<T, kKeys>::kThreads, kKeys == 32 ? 4 : 1)
    gradients_kernel(GradientArgs<T> args) {
  using Tiles = GradientTiles<T, kKeys>;
  using Stage = GradientStage<Tiles, T>;
  using Place = GradientPlace<Tiles>;
  constexpr int kChunk = Tiles::kChunk, kStride = Tiles::kStride, kSquare = Tiles::kSquare;
  constexpr int kSlice = Tiles::kSlice, kSliceStride = Tiles::kSliceStride;
  constexpr int kKeyTiles = Tiles::kOwn / 8, kTokenTiles = Place::kTokenTiles;
  constexpr int kUnitTiles = 2 * Place::kUnits, kPart = kChunk * Tiles::kKeyWarps;
  // A token's threads, where the work is neither keys nor pairs.
  constexpr int kLanes = Tiles::kThreads / kChunk, kLaneValues = kSlice / kLanes;
  const DeltaInputs<T>& in = args.in;
  const Tiles tiles(args.stages);
  const Place place;
  const DeltaDecays<kChunk>& decays = *tiles.decays;
  const int values = args.padded_values, slices = (values + kSlice - 1) / kSlice;
  const DeltaTeam team = {static_cast<int>(threadIdx.x), Tiles::kThreads};
  const int own_token = threadIdx.x / kLanes, own_lane = threadIdx.x % kLanes;
  // A value head's slices go by twice: for the outputs, and for the state.
  const int steps = 2 * slices;

  for (int64_t item = blockIdx.x; item < args.chunks * in.heads; item += gridDim.x) {
    const int64_t number = item / in.heads;
    const int head = static_cast<int>(item % in.heads), first_head = head * in.group();
    const DeltaChunk chunk = chunk_of(args.sequences, number, kChunk);
    if (chunk.tokens == 0) {
      clear_parameter_sums<Tiles>(args, number, first_head);
      continue;
    }

    int fetch_head = first_head, fetch_step = 0;  // what comes next
    const auto fetch = [&](int step) {
      const int h = fetch_head, at = fetch_step;
      if (++fetch_step == steps) {
        fetch_step = 0;
        ++fetch_head;
      }
      const int64_t row = number * in.value_heads + h;
      const bool outputs = at < slices;
      const int v = (outputs ? at : at - slices) * kSlice;
      const Stage stage(tiles, args.stages == 1 ? 0 : step & 1);
      const auto state_slice = [&](T* to, const T* from) {
        load_tile(team, to, kStride, from + row * values * kKeys + int64_t{1} * v * kKeys,
                  int64_t{kKeys}, kSlice, values - v, kKeys, kKeys, true);
      };
      state_slice(stage.S, args.states);
      load_tile(team, stage.slices[0], kSliceStride,
                args.corrections + row * args.correction_step + v, int64_t{values}, kChunk, kChunk,
                kSlice, values - v, true);
      if (outputs) {
        load_tile(team, stage.slices[1], kSliceStride,
                  args.o.data ? chunk.rows(args.o, h) + v : nullptr, chunk.row_step(args.o), kChunk,
                  args.o.data ? chunk.tokens : 0, kSlice, in.V - v, args.o_vectors);
      } else {
        state_slice(stage.gS, args.state_gradients);
        const auto row_slice = [&](T* to, const T* rows, int64_t step, bool vectors) {
          load_tile(team, to, kSliceStride, rows + v, step, kChunk, chunk.tokens, kSlice, in.V - v,
                    vectors);
        };
        row_slice(stage.slices[1], chunk.rows(args.v, h), chunk.row_step(args.v), args.v_vectors);
        row_slice(stage.slices[2], chunk.rows(in.v, h), chunk.row_step(in.v), in.vectors);
      }
      if (at == 0)
        load_tile<float>(team, tiles.record_rows(h), 0,
                         delta_record<T>(args.records, row, kChunk).rows, 0, 1, 1,
                         kDeltaRecordRows * kChunk, kDeltaRecordRows * kChunk, true);
      commit_copies();
    };
    load_tile(team, tiles.k.data, kStride, chunk.rows(in.k, head), chunk.row_step(in.k), kChunk,
              chunk.tokens, kKeys, in.K, in.vectors);
    load_tile(team, tiles.q.data, kStride, chunk.rows(in.q, head), chunk.row_step(in.q), kChunk,
              chunk.tokens, kKeys, in.K, in.vectors);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    Sums<kUnitTiles> qk, kk;
    qk.clear();
    kk.clear();
#pragma unroll 2
    for (int k = 0; k < kKeys; k += 16) {
      FragmentA<T> from_q, from_k;
      load_a(from_q, tiles.q.data + place.token * kStride + k, kStride);
      load_a(from_k, tiles.k.data + place.token * kStride + k, kStride);
      place.for_products([&](int unit, int n) {
        FragmentB<T> b[2];
        load_b_rows(b, tiles.k.data + 16 * n * kStride + k, kStride);
        multiply_add(qk, unit, from_q, b);
        multiply_add(kk, unit, from_k, b);
      });
    }
    Sums<kKeyTiles> gq, gk;
    gq.clear();
    gk.clear();

    Sums<kKeyTiles> sums, reads;
    Sums<kUnitTiles> pairs, over;  // over: what passes over the tokens between a pair
    float state_dot = 0, v_dot = 0;
    const int all_steps = in.group() * steps;
    int h = first_head, next_step = 0;
#pragma unroll 1
    for (int step = 1 - args.stages; step < all_steps; ++step) {  // the first may fetch only
      const int ahead = step + args.stages - 1;
      if (ahead < all_steps)
        fetch(ahead);
      else
        commit_copies();
      if (step < 0) continue;
      if (args.stages > 1)
        wait_copies<1>();
      else
        wait_copies<0>();
      __syncthreads();
      const int at_step = next_step;
      if (at_step == 0 && step > 0) ++h;
      next_step = at_step + 1 == steps ? 0 : at_step + 1;
      const Stage stage(tiles, args.stages == 1 ? 0 : step & 1);
      const float* const rows = tiles.record_rows(h);
      const auto row = [&](DeltaRow which, int token) { return rows[which * kChunk + token]; };
      const auto own = [&](DeltaRow which, int r) {
        return row(which, place.token + place.g + 8 * r);
      };
      // ---- Outputs: q reads S and, through P, u ----
      if (at_step < slices) {
        if (at_step == 0) {
          sums.clear();
          pairs.clear();
        }
#pragma unroll
        for (int k = 0; k < kSlice; k += 16) {
          FragmentA<T> go;
          load_a(go, stage.slices[1] + place.token * kSliceStride + k, kSliceStride);
#pragma unroll
          for (int n = 0; n < kKeyTiles / 2; ++n) {
            FragmentB<T> b[2];
            load_b_columns(b, stage.S + k * kStride + place.key + 16 * n, kStride);
            multiply_add(sums, n, go, b);
          }
          place.for_products([&](int unit, int n) {
            FragmentB<T> b[2];
            load_b_rows(b, stage.slices[0] + 16 * n * kSliceStride + k, kSliceStride);
            multiply_add(pairs, unit, go, b);
          });
        }
        if (at_step == 0)
          tiles.decays->template fill<Tiles::kThreads>(rows + kGate * kChunk, threadIdx.x);
        __syncthreads();
        if (at_step + 1 < slices) continue;
        sums = sums.mapped([&](float x, int r, int) { return own(kReadQ, r) * x; });
        place.template dot_rows<T, 1>(tiles.q, {&sums}, {tiles.parts});
#pragma unroll
        for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) gq.tiles[i][j] += sums.tiles[i][j];
        const auto H = place.weighted(pairs, [&](float x, int i, int j, bool near) {
          return i >= j ? row(kFactorQ, i) * row(kFactorK, j) * decays(i, j, near) * x : 0.f;
        });
        place.store(H, tiles.H, kSquare);
#pragma unroll
        for (int i = 0; i < kUnitTiles; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j) over.tiles[i][j] = H.tiles[i][j] * qk.tiles[i][j];
        continue;
      }

      // ---- The state: k writes u into it, and reads from it what u corrects ----
      if (at_step == slices) {
        sums.clear();
        reads.clear();
        pairs.clear();
        state_dot = v_dot = 0;
      }
      {
#pragma unroll
        for (int k = 0; k < kSlice; k += 16) {
          FragmentA<T> from_u, from_gx;
          load_a(from_u, stage.slices[0] + place.token * kSliceStride + k, kSliceStride);
          load_a(from_gx, stage.slices[1] + place.token * kSliceStride + k, kSliceStride);
#pragma unroll
          for (int n = 0; n < kKeyTiles / 2; ++n) {
            FragmentB<T> b[2];
            load_b_columns(b, stage.gS + k * kStride + place.key + 16 * n, kStride);
            multiply_add(sums, n, from_u, b);
            load_b_columns(b, stage.S + k * kStride + place.key + 16 * n, kStride);
            multiply_add(reads, n, from_gx, b);
          }
          place.for_products([&](int unit, int n) {
            FragmentB<T> b[2];
            load_b_rows(b, stage.slices[0] + 16 * n * kSliceStride + k, kSliceStride);
            multiply_add(pairs, unit, from_gx, b);
          });
        }
        using Numbers = Pack<T, 16 / sizeof(T)>;
        constexpr int kPacks = kKeys * sizeof(T) / 16;
        for (int i = threadIdx.x; i < kSlice * kPacks; i += Tiles::kThreads) {
          const int at = i / kPacks * kStride + i % kPacks * int{16 / sizeof(T)};
          const auto a = *reinterpret_cast<const Numbers*>(stage.S + at);
          const auto b = *reinterpret_cast<const Numbers*>(stage.gS + at);
#pragma unroll
          for (int n = 0; n < int{16 / sizeof(T)}; ++n)
            state_dot = fmaf(to_float(a.values[n]), to_float(b.values[n]), state_dot);
        }
        using Values = Pack<T, kLaneValues>;
        const int column = own_lane * kLaneValues, v = (at_step - slices) * kSlice + column;
        const int at = own_token * kSliceStride + column;
        const auto of_gx = *reinterpret_cast<const Values*>(stage.slices[1] + at);
        const auto of_v = *reinterpret_cast<const Values*>(stage.slices[2] + at);
        const float beta = row(kBeta, own_token);
        Values gv;
#pragma unroll
        for (int i = 0; i < kLaneValues; ++i) {
          const float gx = to_float(of_gx.values[i]);
          v_dot = fmaf(gx, to_float(of_v.values[i]), v_dot);
          gv.values[i] = from_float<T>(beta * gx);
        }
        if (own_token < chunk.tokens) {
          T* const to = chunk.rows(args.v, h) + own_token * chunk.row_step(args.v) + v;
          if (args.v_vectors && v + kLaneValues <= in.V) {
            *reinterpret_cast<Values*>(to) = gv;
          } else {
#pragma unroll
            for (int i = 0; i < kLaneValues; ++i)
              if (v + i < in.V) to[i] = gv.values[i];
          }
        }
        __syncthreads();
      }
      if (at_step + 1 < steps) continue;
      sums = sums.mapped([&](float x, int r, int) { return own(kWrite, r) * x; });
      reads = reads.mapped([&](float x, int r, int) { return own(kReadK, r) * x; });
      place.template dot_rows<T, 2>(tiles.k, {&sums, &reads},
                                    {tiles.parts + kPart, tiles.parts + 2 * kPart});
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          gk.tiles[i][j] += sums.tiles[i][j] - own(kBeta, j >> 1) * reads.tiles[i][j];
      const auto N = place.weighted(pairs, [&](float x, int i, int j, bool near) {
        return i > j ? -row(kFactorK, i) * row(kFactorK, j) * decays(i, j, near) * x : 0.f;
      });
      place.template sum_rows<kUnitTiles>(tiles.parts + 3 * kPart, [&](int, int i, int j, int) {
        return N.tiles[i][j] * kk.tiles[i][j];
      });
      const auto M =
          place.weighted(N, [&](float x, int i, int, bool) { return row(kBeta, i) * x; });
      place.store(M, tiles.M, kSquare);
#pragma unroll
      for (int i = 0; i < kUnitTiles; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) over.tiles[i][j] += M.tiles[i][j] * kk.tiles[i][j];
      place.store(over, tiles.over, Tiles::kOver);
      state_dot = sum_of_lanes(state_dot, 32);
      if (threadIdx.x % 32 == 0)
        tiles.share(kWarpSums)[threadIdx.x / 32] = rows[kDecay * kChunk] * state_dot;
      v_dot = sum_of_lanes(v_dot, kLanes);
      if (own_lane == 0) tiles.share(kCorrection)[own_token] = v_dot;
      __syncthreads();

      // ---- Tokens with tokens ----
#pragma unroll
      for (int t = 0; t < kTokenTiles; ++t) {
        FragmentA<T> from_h, from_ht, from_m, from_mt;
        const bool below = t <= place.tile, above = t >= place.tile;
        if (below) {
          load_a(from_h, tiles.H + place.token * kSquare + 16 * t, kSquare);
          load_a(from_m, tiles.M + place.token * kSquare + 16 * t, kSquare);
        }
        if (above) {
          load_a_transposed(from_ht, tiles.H + 16 * t * kSquare + place.token, kSquare);
          load_a_transposed(from_mt, tiles.M + 16 * t * kSquare + place.token, kSquare);
        }
#pragma unroll
        for (int n = 0; n < kKeyTiles / 2; ++n) {
          FragmentB<T> b[2];
          load_b_columns(b, tiles.k.data + 16 * t * kStride + place.key + 16 * n, kStride);
          if (below) {
            multiply_add(gq, n, from_h, b);
            multiply_add(gk, n, from_m, b);
          }
          if (above) {
            multiply_add(gk, n, from_mt, b);
            load_b_columns(b, tiles.q.data + 16 * t * kStride + place.key + 16 * n, kStride);
            multiply_add(gk, n, from_ht, b);
          }
        }
      }

      store_gate_and_beta<Tiles>(
          tiles, args, chunk, number, h,
          sum_gate_and_beta<Tiles>(
              tiles, pairs_over_token(tiles, rows) + states_over_token<Tiles>(tiles)));
      __syncthreads();
    }
    const auto store = [&](const Sums<kKeyTiles>& sums, const auto& tile, const DeltaRows<T>& to) {
      float* const norms = in.norm ? tiles.over : nullptr;
      if (norms) add_row_dots<T>(place, sums, tile, tiles.parts, norms, true);
      store_rows<T>(place, sums, tile, norms, to, chunk, head, 0, in.K, args.pairs);
    };
    store(gq, tiles.q, args.q);
    store(gk, tiles.k, args.k);
    __syncthreads();
  }
}

}  // namespace

void launch_delta_gradients(const GatedDeltaRuleProblem& p,
                            const GatedDeltaRuleGradients& gradients,
                            const GatedDeltaRuleGpuPlan& plan, const DeltaKept& kept,
                            std::byte* workspace, GpuStream stream) {
  const bool key_vectors = rows_are_vectors(gradients.q) && rows_are_vectors(gradients.k);
  const bool pairs = (!gradients.q || rows_are_pairs(gradients.q)) &&
                     (!gradients.k || rows_are_pairs(gradients.k));
  const int64_t slices =
      plan.warp_groups || plan.deep_groups ? plan.padded_values / DeltaLayout::kPanel : 1;
  dispatch_delta(p.q.dtype, plan.padded_keys, [&]<typename T, int kKeys>() {
    const auto of = [&](int64_t at, const std::byte* kept = nullptr) {
      return reinterpret_cast<const T*>(kept ? kept : workspace + at);
    };
    const GradientArgs<T> args = {delta_inputs<T>(p),
                                  delta_sequences(p, workspace),
                                  delta_rows<const T>(gradients.o),
                                  delta_rows<T>(gradients.q),
                                  delta_rows<T>(gradients.k),
                                  delta_rows<T>(gradients.v),
                                  delta_rows<float>(gradients.g),
                                  delta_rows<unsigned char>(gradients.beta),
                                  rows_are_vectors(gradients.o),
                                  rows_are_vectors(gradients.v),
                                  key_vectors,
                                  pairs,
                                  static_cast<int>(plan.padded_values),
                                  static_cast<int>(plan.gradient_stages),
                                  plan.chunks,
                                  kept.records,
                                  of(plan.states_at, kept.states),
                                  of(plan.state_gradients_at),
                                  of(plan.corrections_at, kept.corrections),
                                  static_cast<int>(plan.correction_step / slices),
                                  delta_parameter_sums(plan, workspace),
                                  reinterpret_cast<float*>(workspace + plan.gradient_slots_at),
                                  plan.gradient_slot_floats};
    if constexpr (sizeof(T) == 2)
      if (plan.warp_groups || plan.deep_groups)
        return launch_delta_group_gradients(args, kKeys, shape_of(plan.gradients), stream);
    launch("gated_delta_rule, gradients", gradients_kernel<T, kKeys>, shape_of(plan.gradients),
           stream, args);
  });
}

}  // namespace linescan
