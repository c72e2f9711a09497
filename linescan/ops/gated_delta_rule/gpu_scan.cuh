// What the two scans over chunks, forward and in reverse, share: who carries which part of the state, what
// stands in shared memory, and the products of a warp's 16 columns. See chunk_scan.cu.
#pragma once

#include "linescan/base/math.h"
#include "linescan/ops/device_code/predicated.cuh"
#include "linescan/ops/device_code/tile_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_kernels.h"
#include "linescan/ops/gated_delta_rule/gpu_record.cuh"
#include "linescan/ops/gated_delta_rule/gpu_segments.cuh"
#include "linescan/ops/gated_delta_rule/gpu_shared_walks.cuh"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {

// The plan's cut, as kernels take it. In the workspace a chunk and value head has a state S^T
// [padded_values, keys] and, correction_step numbers apart, corrections u [chunk, padded_values]; those of warp groups in slices of
// 64 values, u^T then.
struct DeltaScanCut {
  int64_t items;  // walks x value heads x (parts of V and unit parts)
  int column_warps, column_parts, stages, padded_values;
  int compute_warps, loader_warps;  // of a block; without loaders the others load
  int unit_parts;  // behind those of V: of a transition, whose columns start as unit vectors
  int correction_step;

  __host__ __device__ int block_values() const { return 16 * column_warps; }
  __host__ __device__ int64_t state_numbers(int keys) const {
    return int64_t{1} * padded_values * keys;
  }
};

// For the walks of such segments; `units`: and for columns of their transitions.
inline DeltaScanCut delta_scan_cut(const GatedDeltaRuleProblem& p,
                                   const GatedDeltaRuleGpuPlan& plan,
                                   const DeltaSegments& segments = {}, bool units = false) {
  const int64_t unit_parts = units ? plan.unit_parts : 0;
  return {delta_walks(p, segments) * p.v.shape[2] * (plan.column_parts + unit_parts),
          static_cast<int>(plan.column_warps),
          static_cast<int>(plan.column_parts),
          static_cast<int>(plan.stages),
          static_cast<int>(plan.padded_values),
          static_cast<int>(plan.column_warps * plan.key_warps),
          static_cast<int>(plan.loader_warps),
          static_cast<int>(unit_parts),
          static_cast<int>(plan.correction_step)};
}

// Of the walks of such segments, if the plan has them shared by the blocks of that launch.
inline DeltaSharedWalks delta_shared_walks(const GatedDeltaRuleProblem& p,
                                           const GatedDeltaRuleGpuPlan& plan,
                                           const DeltaScanCut& cut, const DeltaSegments& segments,
                                           const DeltaLaunch& launch, std::byte* workspace) {
  if (!plan.shares_walks || launch.grid >= cut.items || launch.grid % plan.column_parts != 0)
    return {};
  return {ceil_div(segments.tokens > 0 ? segments.tokens : p.q.shape[1], plan.chunk),
          static_cast<int>(plan.column_parts),
          reinterpret_cast<unsigned*>(workspace + plan.signals_at),
          reinterpret_cast<float4*>(workspace + plan.handovers_at)};
}

template <typename T>
struct DeltaScanArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  DeltaStates initial, final_state;
  DeltaRows<T> o;
  DeltaScanCut cut;
  std::byte* records;   // null: the scan makes them and nobody keeps them
  bool pairs, vectors;  // rows_are_pairs() and rows_are_vectors() of o
  T *states,
      *corrections;  // for a backward pass: see DeltaScanCut; null: nothing of the kind is wanted
  int64_t kept_sequences;  // with outputs: those of which states and corrections are wanted as well
  DeltaSegments segments;
  DeltaSharedWalks shared;
};

template <typename T>
struct DeltaReverseScanArgs {
  DeltaInputs<T> in;
  DeltaSequences sequences;
  DeltaStates upstream, initial;  // gradients of the final and of the initial state
  DeltaRows<const T> o;           // gradient of o
  bool o_vectors;
  DeltaScanCut cut;
  std::byte* records;
  T* state_gradients;        // null: nothing but ends is wanted
  DeltaRows<T> corrections;  // gX, where the gradient of v will be; null with the above
  bool pairs, vectors;       // rows_are_pairs() and rows_are_vectors() of it
  DeltaSegments segments;
  DeltaSharedWalks shared;
};

// The part of a block's state that a warp carries: 16 columns of V from `value`, and keys from `key`.
struct DeltaScanPlace {
  int column_warp, key_warp, column_warps, value, key, q;
  bool computes, loads;
  DeltaTeam loaders;

  __device__ __forceinline__ DeltaScanPlace(const DeltaScanCut& cut, int own_keys)
      : column_warp(threadIdx.x / 32 % cut.column_warps),
        key_warp(threadIdx.x / 32 / cut.column_warps),
        column_warps(cut.column_warps),
        value(16 * column_warp),
        key(own_keys * key_warp),
        q(threadIdx.x % 4),
        computes(static_cast<int>(threadIdx.x) < 32 * cut.compute_warps),
        loads(cut.loader_warps == 0 || !computes),
        loaders(cut.loader_warps == 0
                    ? DeltaTeam{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)}
                    : DeltaTeam{static_cast<int>(threadIdx.x) - 32 * cut.compute_warps,
                                32 * cut.loader_warps}) {}
};

// What a block works on: a sequence or a segment of one, a value head and some columns of V or of a transition.
template <int kChunk>
struct DeltaScanItem {
  int64_t sequence, segment, chunks, first_row;
  int head, value_heads;
  int first_column, columns;  // the block's first, and of all there are
  bool exists, units;         // units: columns of a transition
  bool first, last;           // of the sequence's segments
  DeltaWalk walk;

  __device__ __forceinline__ DeltaScanItem(int64_t item, const DeltaScanCut& cut,
                                           const DeltaSequences& sequences,
                                           const DeltaSegments& segments, int value_heads, int V,
                                           int keys)
      : value_heads(value_heads) {
    const int parts = cut.column_parts + cut.unit_parts;
    const int part = static_cast<int>(item % parts);
    head = static_cast<int>(item / parts % value_heads);
    units = part >= cut.column_parts;
    first_column = (units ? part - cut.column_parts : part) * cut.block_values();
    columns = units ? keys : V;
    const DeltaStretch at = segments.stretch(sequences, item / parts / value_heads, kChunk);
    walk = at.walk;
    sequence = at.sequence;
    segment = at.segment;
    first = at.first;
    last = at.last;
    // Nobody asks for the transition of a first segment.
    exists = at.exists && !(units && first);
    chunks = (walk.length + kChunk - 1) / kChunk;
    first_row = at.first_chunk * value_heads + head;
  }
  // Of the record, and of everything else that the workspace has for a chunk and value head.
  __device__ __forceinline__ int64_t row(int64_t chunk) const {
    return first_row + chunk * value_heads;
  }
};

// A stage in shared memory. kQueries: with q and P.
template <typename T, int kKeys, bool kQueries>
struct DeltaScanTiles : DeltaSizes<T, kKeys> {
  using Sizes = DeltaSizes<T, kKeys>;
  using Sizes::kChunk, Sizes::kLayout, Sizes::kSquare, Sizes::kStride;
  static constexpr int kOwn = kLayout.scan_keys(), kKeyWarps = kLayout.key_warps();
  static constexpr int kStridePad = kLayout.value_stride(0);
  static constexpr int64_t kFixedBytes = kLayout.stage_bytes(0, kQueries);
  static constexpr int64_t kBytesPerWarp = kLayout.stage_bytes(1, kQueries) - kFixedBytes;

  T *k, *q, *A, *P, *v;
  float *rows, *exchange;
  int value_stride;

  __device__ __forceinline__ DeltaScanTiles(const DeltaScanCut& cut, int64_t number)
      : value_stride(16 * cut.column_warps + kStridePad) {
    const int64_t stage_bytes = kFixedBytes + cut.column_warps * kBytesPerWarp;
    k = reinterpret_cast<T*>(shared_memory() + number % cut.stages * stage_bytes);
    q = k + kChunk * kStride;
    A = kQueries ? q + kChunk * kStride : q;
    P = A + kChunk * kSquare;
    v = kQueries ? P + kChunk * kSquare : P;
    rows = reinterpret_cast<float*>(v + kChunk * value_stride);
    exchange = reinterpret_cast<float*>(shared_memory() + cut.stages * stage_bytes);
  }
  __device__ __forceinline__ float row(DeltaRow which, int token) const {
    return rows[which * kChunk + token];
  }

  __device__ __forceinline__ void fetch_keys(DeltaTeam team, T* tile, const DeltaChunk& chunk,
                                             const DeltaRows<const T>& from, int head,
                                             const DeltaInputs<T>& in) const {
    load_tile(team, tile, kStride, chunk.rows(from, head), chunk.row_step(from), kChunk,
              chunk.tokens, kKeys, in.K, in.vectors);
  }
  __device__ __forceinline__ void fetch_square(DeltaTeam team, T* tile, const T* from) const {
    constexpr int kNumbers = 16 / sizeof(T), kRowPacks = kChunk / kNumbers;
#pragma unroll 4
    for (int i = team.thread; i < kChunk * kRowPacks; i += team.threads) {
      const int row = i / kRowPacks, pack = square_pack<T, kChunk>(row, i % kRowPacks);
      copy_async<16>(tile + row * kSquare + pack * kNumbers, from + i * kNumbers);
    }
  }
  __device__ __forceinline__ void fetch_record(DeltaTeam team, std::byte* records,
                                               int64_t number) const {
    const DeltaRecord<T> record = delta_record<T>(records, number, kChunk);
    fetch_square(team, A, record.A);
    if constexpr (kQueries) fetch_square(team, P, record.P);
    constexpr int kNumbers = kDeltaRecordRows * kChunk;
    load_tile<float>(team, rows, 0, record.rows, 0, 1, 1, kNumbers, kNumbers, true);
  }
};

// Calls use(chunk) for 0 .. chunks - 1 (reverse: from the last on) when what fetch(chunk) copies has arrived;
// with two stages the next one's copies are under way meanwhile. Warps that compute use, those that load
// fetch.
template <class Fetch, class Use>
__device__ __forceinline__ void walk_chunks(int64_t chunks, int stages, bool reverse,
                                            const DeltaScanPlace& place, const Fetch& fetch,
                                            const Use& use) {
  const auto number = [&](int64_t i) { return reverse ? chunks - 1 - i : i; };
  const auto arrive = [] {
    wait_copies<0>();
    __syncthreads();
  };
#pragma unroll 1
  for (int64_t i = 1 - stages; i < chunks; ++i) {  // the first round of two stages fetches only
    const int64_t ahead = i + stages - 1;
    if (stages > 1 && i >= 0) arrive();
    if (place.loads && ahead < chunks) {
      fetch(number(ahead));
      commit_copies();
    }
    if (i < 0) continue;
    if (stages == 1) arrive();
    if (place.computes) use(number(i));
    __syncthreads();
  }
}

// ---- Products: sums [16, 8 kTiles] of left operands [16, 16] side by side and a tile ----------------

// sums += left tile^T. kLower: the tile is a lower triangle, and what is zero is left out.
template <bool kLower = false, typename T, int kTiles, int kDepth>
__device__ __forceinline__ void multiply_rows(Sums<kTiles>& sums,
                                              const FragmentA<T> (&left)[kDepth], const T* tile,
                                              int stride) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
#pragma unroll
    for (int n = kLower ? k : 0; n < kTiles / 2; ++n) {
      FragmentB<T> b[2];
      load_b_rows(b, tile + 16 * n * stride + 16 * k, stride);
      multiply_add(sums, n, left[k], b);
    }
}
// sums += left tile
template <bool kLower = false, typename T, int kTiles, int kDepth>
__device__ __forceinline__ void multiply_columns(Sums<kTiles>& sums,
                                                 const FragmentA<T> (&left)[kDepth], const T* tile,
                                                 int stride) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
#pragma unroll
    for (int n = 0; n < (kLower ? k + 1 : kTiles / 2); ++n) {
      FragmentB<T> b[2];
      load_b_columns(b, tile + 16 * k * stride + 16 * n, stride);
      multiply_add(sums, n, left[k], b);
    }
}

// The sums of warps that share columns, in the order of their keys; all warps that compute take part.
template <int kKeyWarps, int kTiles>
__device__ __forceinline__ void add_key_parts(Sums<kTiles>& sums, float* exchange,
                                              const DeltaScanPlace& place) {
  if constexpr (kKeyWarps > 1) {
    const int lane = threadIdx.x % 32;
    const auto of = [&](int key_warp) {
      return exchange + (key_warp * place.column_warps + place.column_warp) * kTiles * 128 + lane;
    };
    constexpr int kBarrier = 1;
    const int threads = 32 * kKeyWarps * place.column_warps;
    float* const own = of(place.key_warp);
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) own[32 * i] = sums.tiles[i / 4][i % 4];
    barrier_wait(kBarrier, threads);
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) {
      float sum = 0;
#pragma unroll
      for (int key_warp = 0; key_warp < kKeyWarps; ++key_warp) sum += of(key_warp)[32 * i];
      sums.tiles[i / 4][i % 4] = sum;
    }
    barrier_wait(kBarrier, threads);
  }
}

// ---- Between registers and memory ----------------------------------------------------------------

// Calls visit(number, where it stands, whether it lies within V and K) for the numbers of S^T, in a matrix of the caller's.
template <int kTiles, class State, typename Float, class Visit>
__device__ __forceinline__ void for_each_in_memory(State& state, Float* base,
                                                   const DeltaStates& strides, int value, int key,
                                                   int V, int K, const Visit& visit) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  Float* at = base + (key + 2 * q) * strides.key + (value + g) * strides.value;
  const int64_t next_key = strides.key, next_value = 8 * strides.value, next_tile = 8 * strides.key;
#pragma unroll
  for (int i = 0; i < kTiles; ++i, at += next_tile)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      visit(state.tiles[i][j], at + (j & 1) * next_key + (j >> 1) * next_value,
            value + g + 8 * (j >> 1) < V && key + 8 * i + 2 * q + (j & 1) < K);
}

// A state of the caller's, zero if there is none.
template <int kTiles>
__device__ __forceinline__ void load_state(Sums<kTiles>& state, const DeltaStates& from,
                                           int64_t sequence, int head, int value, int key, int V,
                                           int K) {
  state.clear();
  if (!from.data) return;
  for_each_in_memory<kTiles>(
      state, from.of(sequence, head), from, value, key, V, K,
      [](float& x, const float* at, bool inside) { x = load_if(inside, at); });
}
template <int kTiles>
__device__ __forceinline__ void store_state(const Sums<kTiles>& state, const DeltaStates& to,
                                            int64_t sequence, int head, int value, int key, int V,
                                            int K) {
  if (!to.data) return;
  for_each_in_memory<kTiles>(state, to.of(sequence, head), to, value, key, V, K,
                             [](float x, float* at, bool inside) {
                               if (inside) *at = x;
                             });
}
// What an item's walk starts with: `outer` where the sequence starts, else as the segments are; `segment` has the boundary
// in front of it.
template <int kTiles, class Item>
__device__ __forceinline__ void load_start(Sums<kTiles>& state, const DeltaSegments& segments,
                                           const Item& at, const DeltaStates& outer,
                                           bool at_the_edge, int64_t segment, int value, int key,
                                           int K) {
  if (at.units) {
    const int g = threadIdx.x % 32 / 4;
    state.clear();
    state = state.mapped([&](float, int row, int k) {
      const int v = value + g + 8 * row;
      return v < at.columns && v == key + k ? 1.f : 0.f;
    });
    return;
  }
  const bool from_zero = !at_the_edge && segments.are == DeltaSegmentsAre::kAlone;
  load_state(state,
             at_the_edge ? outer
             : from_zero ? DeltaStates{}
                         : segments.boundary(segment),
             at.sequence, at.head, value, key, at.columns, K);
}
// And what it leaves behind.
template <int kTiles, class Item>
__device__ __forceinline__ void store_end(const Sums<kTiles>& state, const DeltaSegments& segments,
                                          const Item& at, const DeltaStates& outer,
                                          bool at_the_edge, int64_t segment, int value, int key,
                                          int K) {
  if (!at.units && !at_the_edge && segments.are == DeltaSegmentsAre::kSideBySide) return;
  const int places = at.units ? 2 : 1;
#pragma unroll 1
  for (int i = 0; i < places; ++i)
    store_state(
        state,
        at.units ? i == 0 ? segments.transition(at.segment) : segments.turned_transition(at.segment)
        : at_the_edge ? outer
                      : segments.boundary(segment),
        at.sequence, at.head, value, key, at.columns, at.units ? at.columns : K);
}
// A state of the workspace, [values, keys].
template <typename T, int kTiles>
__device__ __forceinline__ void keep_state(const Sums<kTiles>& state, T* to, int value, int key,
                                           int values, int keys) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int v = value + g + 8 * row;
    if (v >= values) continue;
    T* const at = to + int64_t{1} * v * keys + key + 2 * q;
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
      store_two(at, 8 * i, keys, true, state.tiles[i][2 * row], state.tiles[i][2 * row + 1]);
  }
}

// rows[token, value ..] <- sums^T [tokens, 16], up to `values` of them. pairs: two neighbours are one
// access.
template <typename T, int kTiles>
__device__ __forceinline__ void store_tokens(T* rows, int64_t step, int tokens,
                                             const Sums<kTiles>& sums, int value, int values,
                                             bool pairs) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  if constexpr (sizeof(T) == 2) {
    T* at = rows + g * step + value + 2 * q;
    const int64_t next = 8 * step;
    const bool whole = pairs && tokens >= 8 * kTiles && value + 16 <= values;
    const auto word = [&](int i, int half) {
      return transpose_8x8(
          pair_from_floats<T>(sums.tiles[i][2 * half], sums.tiles[i][2 * half + 1]));
    };
    if (whole) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i, at += next)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          *reinterpret_cast<uint32_t*>(at + 8 * half) = word(i, half);
    } else {
#pragma unroll
      for (int i = 0; i < kTiles; ++i, at += next)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t both = word(i, half);
#pragma unroll
          for (int j = 0; j < 2; ++j)
            store_if(8 * i + g < tokens && value + 8 * half + 2 * q + j < values, at + 8 * half + j,
                     T{static_cast<uint16_t>(both >> (16 * j))});
        }
    }
  } else {
    T* at = rows + 2 * q * step + value + g;
#pragma unroll
    for (int i = 0; i < kTiles; ++i, at += 8 * step)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (8 * i + 2 * q + (j & 1) < tokens && value + g + 8 * (j >> 1) < values)
          at[(j & 1) * step + 8 * (j >> 1)] = sums.tiles[i][j];
  }
}

}  // namespace linescan
