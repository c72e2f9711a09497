// gated_delta_rule, the gradients of what went in, by warp groups: what chunk_gradients.cu computes, for half types
// and 33 to 256 keys, where products of warp groups are to be had.
//
// A block takes a chunk and a head of q and k, and goes through the value heads that read them; with more than 128
// keys twice, for half of the keys each time. Two groups of four warps share the keys; each has all 64 tokens, 16 a
// warp. V goes by in slices of 64, of which one is multiplied while the next one arrives. Of the products of tokens
// with tokens the first group has H = E o (gO u^T), the second N = -E o (gX u^T) and M.
//
// gq and gk add up over value heads in the block's slot of the workspace: in registers they would leave too few for the
// rest.
//
// Numerics:  sums in float32; operands of products are rounded to T.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_gate_gradient.cuh"
#include "linescan/ops/gated_delta_rule/gpu_gradients.cuh"

namespace linescan {
namespace {

using enum DepthIs;

// What stands where in shared memory.
template <typename T, int kKeys>
struct GroupTiles : DeltaSizes<T, kKeys> {
  using Sizes = DeltaSizes<T, kKeys>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr int kThreads = DeltaLayout::kGroupThreads, kSlice = DeltaLayout::kPanel;
  static constexpr int kOver = DeltaLayout::kGroupOverStride;
  static constexpr int kKeyWarps = 2, kOwn = kKeys / 2, kShares = 2;       // of the two groups
  static constexpr int kTile = kChunk * kKeys, kSquare = kChunk * kChunk;  // numbers
  static constexpr int64_t kStageBytes = kLayout.group_stage_bytes();

  Panels<T> k, q, H, M;
  float *over, *rows, *own, *norms;
  DeltaDecays<kChunk>* decays;
  unsigned char* stages;

  __device__ __forceinline__ GroupTiles() {
    T* const first = reinterpret_cast<T*>(group_memory());
    k = {first, kChunk};
    q = {first + kTile, kChunk};
    H = {first + 2 * kTile, kChunk};
    M = {first + 2 * kTile + kSquare, kChunk};
    stages = reinterpret_cast<unsigned char*>(first + 2 * kTile + 2 * kSquare);
    decays =
        reinterpret_cast<DeltaDecays<kChunk>*>(stages + DeltaLayout::kGroupStages * kStageBytes);
    rows = reinterpret_cast<float*>(decays + 1);
    own = rows + 2 * kDeltaRecordRows * kChunk;
    norms = own + kDeltaRecordRows * kChunk;
    over = norms + DeltaLayout::kGroupNormRows * kChunk;
  }
  __device__ __forceinline__ float* over_of(int group) const {
    return over + group * kChunk * kOver;
  }
  // Of a value head, the block's `turn`-th, or of the next.
  __device__ __forceinline__ float* record_rows(int turn) const {
    return rows + turn % 2 * kDeltaRecordRows * kChunk;
  }
  __device__ __forceinline__ float* share(GradientRow which, int group = 0) const {
    return own + (which < kCorrection ? kShares * which + group : which + kCorrection) * kChunk;
  }
};

// One slice of V in a stage: states [slice, keys], and tiles [chunk, slice].
template <class Tiles, typename T>
struct GroupStage {
  Panels<T> S, gS, u, go, gx, v;

  __device__ __forceinline__ GroupStage(const Tiles& tiles, int step) {
    constexpr int kState = Tiles::kSlice * Tiles::kOwn * 2, kTokens = Tiles::kSquare;
    T* const first =
        reinterpret_cast<T*>(tiles.stages + step % DeltaLayout::kGroupStages * Tiles::kStageBytes);
    S = {first, Tiles::kSlice};
    gS = {first + kState, Tiles::kSlice};
    T* const tokens = first + 2 * kState;
    u = {tokens, Tiles::kChunk};
    go = {tokens + kTokens, Tiles::kChunk};
    gx = {tokens + 2 * kTokens, Tiles::kChunk};
    v = {tokens + 3 * kTokens, Tiles::kChunk};
  }
};

// What passes over a token from those behind it to those in front of it, a share a thread of the token. Uses up
// `over`, where beta, of the thread's token, is still missing from what the second group wrote.
template <class Tiles>
__device__ __forceinline__ float pairs_over_token(const Tiles& tiles, float beta) {
  constexpr int kLanes = Tiles::kThreads / Tiles::kChunk, kOwn = Tiles::kChunk / kLanes;
  static_assert(kLanes == 4);
  const int own_token = threadIdx.x / kLanes, own_lane = threadIdx.x % kLanes;
  // The row's sum in front of each of its columns; those behind the token hold anything, and are not used.
  const int row = own_token * Tiles::kOver + own_lane * kOwn;
  float before[kOwn], sum = 0;
#pragma unroll
  for (int n = 0; n < kOwn / 4; ++n) {
    const int at = row + (n ^ own_lane / 2) * 4;  // so that lanes read other banks
    const auto a = *reinterpret_cast<const float4*>(tiles.over_of(0) + at);
    const auto b = *reinterpret_cast<const float4*>(tiles.over_of(1) + at);
    before[4 * n] = fmaf(beta, b.x, a.x);
    before[4 * n + 1] = fmaf(beta, b.y, a.y);
    before[4 * n + 2] = fmaf(beta, b.z, a.z);
    before[4 * n + 3] = fmaf(beta, b.w, a.w);
  }
  if (own_lane / 2 != 0)
#pragma unroll
    for (int n = 0; n < kOwn; n += 8)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = before[n + i];
        before[n + i] = before[n + 4 + i];
        before[n + 4 + i] = x;
      }
#pragma unroll
  for (int n = 0; n < kOwn; ++n) {
    const float here = before[n];
    before[n] = sum;
    sum += here;
  }
  float in_front = 0;
#pragma unroll
  for (int lane = 0; lane + 1 < kLanes; ++lane) {
    const float of_lane = __shfl_sync(kAllLanes, sum, lane, kLanes);
    if (lane < own_lane) in_front += of_lane;
  }
#pragma unroll
  for (int n = 0; n < kOwn / 4; ++n)
    *reinterpret_cast<float4*>(tiles.over_of(0) + row + 4 * n) =
        make_float4(before[4 * n] + in_front, before[4 * n + 1] + in_front,
                    before[4 * n + 2] + in_front, before[4 * n + 3] + in_front);
  __syncthreads();
  float pairs = 0;
#pragma unroll
  for (int n = 0; n < kOwn; ++n) {
    const int i = own_lane * kOwn + (n + own_lane) % kOwn;
    const float x = tiles.over_of(0)[i * Tiles::kOver + own_token];
    if (i >= own_token) pairs += x;
  }
  return pairs;
}

// A thread's sums over value heads, of every part of the keys, and of every value head the gradients of gates and beta
// from the parts so far.
class GroupSlot {
 public:
  template <typename T>
  __device__ __forceinline__ explicit GroupSlot(const GradientArgs<T>& args)
      : gates_(args.slots + blockIdx.x * args.slot_floats),
        sums_(gates_ + args.in.group() * kGateFloats) {}

  template <int kTiles>
  __device__ __forceinline__ void put(int part, const Sums<kTiles>& gq,
                                      const Sums<kTiles>& gk) const {
    gq.put(at(2 * part, kTiles), DeltaLayout::kGroupThreads);
    gk.put(at(2 * part + 1, kTiles), DeltaLayout::kGroupThreads);
  }
  // gq, gk += what was put.
  template <int kTiles>
  __device__ __forceinline__ void add(int part, Sums<kTiles>& gq, Sums<kTiles>& gk) const {
    gq.add(at(2 * part, kTiles), DeltaLayout::kGroupThreads);
    gk.add(at(2 * part + 1, kTiles), DeltaLayout::kGroupThreads);
  }
  // [gate, beta][token] of the i-th value head.
  __device__ __forceinline__ float* gates(int i) const { return gates_ + i * kGateFloats; }

 private:
  static constexpr int kGateFloats = 2 * DeltaLayout::kPanel;
  float *gates_, *sums_;

  __device__ __forceinline__ float4* at(int which, int tiles) const {
    return reinterpret_cast<float4*>(sums_) + which * tiles * DeltaLayout::kGroupThreads +
           threadIdx.x;
  }
};

// kKeys of a part.
template <typename T, int kKeys, int kParts>
__global__ void __launch_bounds__(DeltaLayout::kGroupThreads, 1)
    group_gradients_kernel(GradientArgs<T> args) {
  using Tiles = GroupTiles<T, kKeys>;
  using Stage = GroupStage<Tiles, T>;
  constexpr int kChunk = Tiles::kChunk, kSlice = Tiles::kSlice, kThreads = Tiles::kThreads;
  constexpr int kAllKeys = kKeys * kParts;  // of a state in the workspace
  constexpr int kKeyTiles = Tiles::kOwn / 8;
  // A token's threads, where the work is neither keys nor pairs, and their numbers of V.
  constexpr int kLanes = kThreads / kChunk, kLaneValues = kSlice / kLanes;
  const DeltaInputs<T>& in = args.in;
  const Tiles tiles;
  const GroupSlot slot(args);
  const GradientPlace<Tiles> place;
  const int group = place.key_warp;
  const DeltaDecays<kChunk>& decays = *tiles.decays;
  const int slices = args.padded_values / kSlice;
  const int own_token = threadIdx.x / kLanes, own_lane = threadIdx.x % kLanes;

  for (int64_t item = blockIdx.x; item < args.chunks * in.heads; item += gridDim.x) {
    const int64_t number = item / in.heads;
    const int head = static_cast<int>(item % in.heads), first_head = head * in.group();
    const DeltaChunk chunk = chunk_of(args.sequences, number, kChunk);
    if (chunk.tokens == 0) {
      clear_parameter_sums(args, number, first_head);
      continue;
    }

    int fetch_part = 0, fetch_turn = 0, fetch_head = first_head,
        fetch_slice = 0;  // what comes next
    const auto fetch = [&](int step) {
      const int h = fetch_head, v = fetch_slice * kSlice;
      const int64_t row = number * in.value_heads + h, unit = row * slices + fetch_slice;
      const Stage stage(tiles, step);
      // Panels that lie in the workspace as they will lie here.
      const auto panels = [&]<int kCount>(const Panels<T>& to, const T* from) {
        constexpr int kPass = 8 * kThreads;
#pragma unroll
        for (int at = 0; at < kCount * Tiles::kSquare; at += kPass)
          copy_async<16>(to.data + 8 * threadIdx.x + at, from + 8 * threadIdx.x + at);
      };
      const int64_t state = unit * kSlice * kAllKeys + fetch_part * kSlice * kKeys;
      panels.template operator()<kKeys / kSlice>(stage.S, args.states + state);
      panels.template operator()<kKeys / kSlice>(stage.gS, args.state_gradients + state);
      const int64_t tokens = unit * Tiles::kSquare;
      panels.template operator()<1>(stage.u, args.corrections + tokens);
      panels.template operator()<1>(stage.gx, args.correction_gradients + tokens);
      load_panels<kSlice, kThreads>(
          threadIdx.x, stage.go, args.o.data ? chunk.rows(args.o, h) + v : nullptr,
          chunk.row_step(args.o), args.o.data ? chunk.tokens : 0, in.V - v, args.o_vectors);
      if (fetch_part + 1 == kParts)
        load_panels<kSlice, kThreads>(threadIdx.x, stage.v, chunk.rows(in.v, h) + v,
                                      chunk.row_step(in.v), chunk.tokens, in.V - v, in.vectors);
      if (fetch_slice == 0)
        load_tile<float>({static_cast<int>(threadIdx.x), kThreads}, tiles.record_rows(fetch_turn),
                         0, delta_record<T>(args.records, row, kChunk).rows, 0, 1, 1,
                         kDeltaRecordRows * kChunk, kDeltaRecordRows * kChunk, true);
      commit_copies();
      if (++fetch_slice == slices) {
        fetch_slice = 0;
        ++fetch_turn;
        if (++fetch_head == first_head + in.group()) {
          fetch_head = first_head;
          ++fetch_part;
        }
      }
    };
    const auto fetch_keys = [&](int part) {
      const int key = part * kKeys;
      load_panels<kKeys, kThreads>(threadIdx.x, tiles.k, chunk.rows(in.k, head) + key,
                                   chunk.row_step(in.k), chunk.tokens, in.K - key, in.vectors);
      load_panels<kKeys, kThreads>(threadIdx.x, tiles.q, chunk.rows(in.q, head) + key,
                                   chunk.row_step(in.q), chunk.tokens, in.K - key, in.vectors);
      commit_copies();
    };
    fetch_keys(0);
    fetch(0);
    Sums<kKeyTiles> q_reads, k_writes, k_reads;
    // What becomes of the first two when a value head is through.
    Sums<kKeyTiles>&gq = q_reads, &gk = k_writes;
    Sums<kChunk / 8> pairs;
    float state_dot = 0, v_dot = 0;
    const int all_steps = kParts * in.group() * slices;
    int part = 0, turn = 0, h = first_head, slice = 0;
#pragma unroll 1
    for (int step = 0; step < all_steps; ++step, ++slice) {
      if (slice == slices) {
        slice = 0;
        ++turn;
        if (++h == first_head + in.group()) {
          h = first_head;
          ++part;
        }
      }
      wait_copies<0>();
      __syncthreads();
      const Stage stage(tiles, step);
      const float* const rows = tiles.record_rows(turn);
      const auto row = [&](DeltaRow which, int token) { return rows[which * kChunk + token]; };
      const auto own = [&](DeltaRow which, int r) {
        return row(which, place.token + place.g + 8 * r);
      };
      if (slice == 0) state_dot = v_dot = 0;
      const bool add = slice > 0;
      group_begin(q_reads, k_writes, k_reads, pairs);
      group_multiply<kColumns, kColumns, kSlice, T>(
          pairs, {{group == 0 ? stage.go.data : stage.gx.data, kChunk}}, {stage.u}, add);
      group_multiply<kColumns, kRows, kSlice, T>(q_reads, {stage.go}, {stage.S, 0, place.key}, add);
      group_multiply<kColumns, kRows, kSlice, T>(k_writes, {stage.u}, {stage.gS, 0, place.key},
                                                 add);
      group_multiply<kColumns, kRows, kSlice, T>(k_reads, {stage.gx}, {stage.S, 0, place.key}, add);
      group_commit();

      // ---- Beside the products: the next slice, <gS', S>, gX . v and the gradient of v ----
      if (step + 1 < all_steps) fetch(step + 1);
      if (slice == 0) tiles.decays->fill(rows + kGate * kChunk);
#pragma unroll
      for (int i = 0; i < kSlice * kKeys / 8 / kThreads; ++i) {
        const int at = threadIdx.x + i * kThreads;  // the same place in both, whatever it is
        const uint4 a = reinterpret_cast<const uint4*>(stage.S.data)[at];
        const uint4 b = reinterpret_cast<const uint4*>(stage.gS.data)[at];
        const uint32_t a_words[] = {a.x, a.y, a.z, a.w}, b_words[] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const Two<T> of_S = {a_words[n]}, of_gS = {b_words[n]};
          state_dot = fmaf(of_S[1], of_gS[1], fmaf(of_S[0], of_gS[0], state_dot));
        }
      }
      const float beta = row(kBeta, own_token);
      const bool last_part = part + 1 == kParts;
      T* const gv_row = args.v.data && own_token < chunk.tokens
                            ? chunk.rows(args.v, h) + own_token * chunk.row_step(args.v)
                            : nullptr;
#pragma unroll
      for (int i = 0; last_part && i < kLaneValues; i += 8) {
        const int column = own_lane * kLaneValues + i, v = slice * kSlice + column;
        const auto of_gx = *reinterpret_cast<const uint4*>(stage.gx.at(own_token, column));
        const auto of_v = *reinterpret_cast<const uint4*>(stage.v.at(own_token, column));
        const uint32_t gx_words[] = {of_gx.x, of_gx.y, of_gx.z, of_gx.w};
        const uint32_t v_words[] = {of_v.x, of_v.y, of_v.z, of_v.w};
        uint32_t gv[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const Two<T> gx = {gx_words[n]}, of = {v_words[n]};
          v_dot = fmaf(gx[1], of[1], fmaf(gx[0], of[0], v_dot));
          gv[n] = pair_from_floats<T>(beta * gx[0], beta * gx[1]);
        }
        if (!gv_row) continue;
        if (args.v_vectors && v + 8 <= in.V) {
          *reinterpret_cast<uint4*>(gv_row + v) = make_uint4(gv[0], gv[1], gv[2], gv[3]);
        } else {
#pragma unroll
          for (int n = 0; n < 8; ++n)
            if (v + n < in.V) gv_row[v + n] = T{static_cast<uint16_t>(gv[n / 2] >> (16 * (n % 2)))};
        }
      }
      group_wait<0>(q_reads, k_writes, k_reads, pairs);
      if (slice + 1 < slices) continue;

      // ---- Tokens with the state ----
      float reads[2], to_beta[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float factor = own(kReadQ, r);
        float dot = 0;
        place.template for_keys<T>(tiles.q, r, [&](int tile, int j, float q) {
          const float sum = q_reads.tiles[tile][j];
          dot = fmaf(q, sum, dot);
          gq.tiles[tile][j] = factor * sum;
        });
        reads[r] = factor * dot;
      }
      Sums<kChunk / 8> square;  // q k^T or k k^T
      group_begin(square);
      group_multiply<kColumns, kColumns, kKeys, T>(
          square, {{group == 0 ? tiles.q.data : tiles.k.data, kChunk}}, {tiles.k}, false);
      group_commit();
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float write = own(kWrite, r), read = own(kReadK, r), beta = own(kBeta, r);
        const float correction = -beta * read;
        float write_dot = 0, read_dot = 0;
        place.template for_keys<T>(tiles.k, r, [&](int tile, int j, float k) {
          const float of_write = k_writes.tiles[tile][j], of_read = k_reads.tiles[tile][j];
          write_dot = fmaf(k, of_write, write_dot);
          read_dot = fmaf(k, of_read, read_dot);
          gk.tiles[tile][j] = fmaf(correction, of_read, write * of_write);
        });
        to_beta[r] = -read * sum_of_quad(read_dot);
        reads[r] = sum_of_quad(reads[r]) + beta * to_beta[r];
        const float writes = write * sum_of_quad(write_dot);
        if (place.q == 0) {
          tiles.share(kReads, group)[place.token + place.g + 8 * r] = reads[r];
          tiles.share(kWrites, group)[place.token + place.g + 8 * r] = writes;
        }
      }
      state_dot = sum_of_lanes(state_dot, 32);
      if (threadIdx.x % 32 == 0) tiles.share(kWarpSums)[threadIdx.x / 32] = state_dot;
      v_dot = sum_of_lanes(v_dot, kLanes);
      if (own_lane == 0) tiles.share(kCorrection)[own_token] = v_dot;
      __syncthreads();  // decays
      group_wait<0>(square);

      // ---- H, or N and M, and what passes over tokens: H o q k^T and N o k k^T ----
      float of_row[2], weight[2], row_sum[2] = {};  // weight: from N to M
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        of_row[r] = group == 0 ? own(kFactorQ, r) : -own(kFactorK, r);
        weight[r] = group == 0 ? 1.f : own(kBeta, r);
      }
      const Panels<T> result = {tiles.H.data + group * Tiles::kSquare, kChunk};  // H or M
      float* const over = tiles.over_of(group);
#pragma unroll
      for (int block = 0; block < kChunk / 16; ++block) {
        const bool here = block == place.tile;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int t = 2 * block + half, j = 8 * t + 2 * place.q;
          uint32_t words[2] = {};
          if (block <= place.tile) {
            const float2 of_column = *reinterpret_cast<const float2*>(&rows[kFactorK * kChunk + j]);
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              const int i = place.token + place.g + 8 * r;
              float x[2], passes[2];
#pragma unroll
              for (int n = 0; n < 2; ++n) {
                x[n] = of_row[r] * (n == 0 ? of_column.x : of_column.y) * decays(i, j + n, here) *
                       pairs.tiles[t][2 * r + n];
                if (here && (group == 0 ? i < j + n : i <= j + n)) x[n] = 0;
                passes[n] = x[n] * square.tiles[t][2 * r + n];
                row_sum[r] += passes[n];
              }
              words[r] = pair_from_floats<T>(weight[r] * x[0], weight[r] * x[1]);
              *reinterpret_cast<float2*>(over + i * Tiles::kOver + j) =
                  make_float2(passes[0], passes[1]);
            }
          }
#pragma unroll
          for (int r = 0; r < 2; ++r)
            *reinterpret_cast<uint32_t*>(result.at(place.token + place.g + 8 * r, j)) = words[r];
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = group == 0 ? 0.f : sum_of_quad(row_sum[r]);
        if (place.q == 0)
          tiles.share(kToBeta, group)[place.token + place.g + 8 * r] = to_beta[r] + sum;
      }
      group_publish();
      __syncthreads();

      // ---- Tokens with tokens ----
      group_begin(gq, gk);
      group_multiply<kColumns, kRows, kChunk, T>(gq, {tiles.H}, {tiles.k, 0, place.key});
      group_multiply<kRows, kRows, kChunk, T>(gk, {tiles.H}, {tiles.q, 0, place.key});
      group_multiply<kColumns, kRows, kChunk, T>(gk, {tiles.M}, {tiles.k, 0, place.key});
      group_multiply<kRows, kRows, kChunk, T>(gk, {tiles.M}, {tiles.k, 0, place.key});
      group_commit();
      const float over_token = pairs_over_token(tiles, beta);
      TokenGradients sums = sum_gate_and_beta(tiles, rows[kDecay * kChunk], over_token);
      if (kParts > 1 && own_lane == 0) {
        float* const gates = slot.gates(h - first_head) + own_token;
        if (last_part) {
          sums.gate += gates[0];
          sums.beta += gates[kChunk];
        } else {
          gates[0] = sums.gate;
          gates[kChunk] = sums.beta;
        }
      }
      if (last_part) store_gate_and_beta(tiles, args, chunk, number, h, sums);
      group_wait<0>(gq, gk);
      const bool more = h + 1 < first_head + in.group();
      if (h > first_head) slot.add(part, gq, gk);
      if (more) {
        slot.put(part, gq, gk);
        continue;
      }

      // ---- All value heads are through ----
      __syncthreads();
      if (in.norm) {
        add_row_dots<T>(place, gq, tiles.q, tiles.over, tiles.norms, part == 0);
        add_row_dots<T>(place, gk, tiles.k, tiles.over, tiles.norms + 2 * kChunk, part == 0);
      }
      if (last_part) break;
      slot.put(part, gq, gk);
      fetch_keys(part + 1);
    }
#pragma unroll 1
    for (int part = kParts - 1; part >= 0; --part) {
      if (part + 1 < kParts) {
        fetch_keys(part);
        gq.clear();
        gk.clear();
        slot.add(part, gq, gk);
        wait_copies<0>();
        __syncthreads();
      }
      const float* const norms = in.norm ? tiles.norms : nullptr;
      store_rows<T>(place, gq, tiles.q, norms, args.q, chunk, head, part * kKeys, in.K, args.pairs);
      store_rows<T>(place, gk, tiles.k, norms ? norms + 2 * kChunk : nullptr, args.k, chunk, head,
                    part * kKeys, in.K, args.pairs);
      __syncthreads();
    }
  }
}

}  // namespace

template <typename T>
void launch_delta_group_gradients(const GradientArgs<T>& args, int64_t padded_keys,
                                  const LaunchShape& shape, GpuStream stream) {
  const auto kernel = padded_keys == 256   ? group_gradients_kernel<T, 128, 2>
                      : padded_keys == 128 ? group_gradients_kernel<T, 128, 1>
                                           : group_gradients_kernel<T, 64, 1>;
  launch("gated_delta_rule, gradients", kernel, shape, stream, args);
}
template void launch_delta_group_gradients(const GradientArgs<BFloat16>&, int64_t,
                                           const LaunchShape&, GpuStream);
template void launch_delta_group_gradients(const GradientArgs<Float16>&, int64_t,
                                           const LaunchShape&, GpuStream);

}  // namespace linescan
