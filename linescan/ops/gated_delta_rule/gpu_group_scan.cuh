// What the scans of warp groups share: who computes and who moves data, what stands in shared memory, and how results
// leave.
//
// A block carries S^T of 64 columns of V, [64, K], in the registers of one warp group, 16 columns a warp. Another
// group loads, some chunks ahead, and stores what the first one puts on a desk in shared memory. (With more keys two
// groups carry S^T, and load themselves: gpu_group_pair.cuh.)
#pragma once

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_scan.cuh"

namespace linescan {

inline constexpr int kGroup = DeltaLayout::kGroupScanThreads / 2;

// A chunk in shared memory. kOutputs: with q and P.
template <typename T, int kKeys, bool kOutputs>
struct GroupScanTiles : DeltaSizes<T, kKeys, kKeys == DeltaLayout::kPairKeys> {
  using Sizes = DeltaSizes<T, kKeys, kKeys == DeltaLayout::kPairKeys>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr bool kWithQueries = kOutputs;
  static constexpr int64_t kStageBytes = kLayout.group_scan_stage_bytes(kOutputs);
  static_assert(kChunk == 64);

  Panels<T> k, q, A, P, v;
  float* rows;

  __device__ __forceinline__ explicit GroupScanTiles(int stage) {
    T* next = reinterpret_cast<T*>(group_memory() + stage * kStageBytes);
    const auto take = [&](int columns) {
      const Panels<T> panels = {next, kChunk};
      next += kChunk * columns;
      return panels;
    };
    k = take(kKeys);
    q = kOutputs ? take(kKeys) : k;
    A = take(kChunk);
    P = kOutputs ? take(kChunk) : A;
    v = take(kChunk);
    rows = reinterpret_cast<float*>(next);
  }
  // Of the two neighbouring tokens that stand at fragment_k(q, 2 half) of an operand of depth 16 t.
  __device__ __forceinline__ float2 row(DeltaRow which, int t, int half) const {
    return *reinterpret_cast<const float2*>(
        &rows[which * kChunk + 16 * t + 8 * half + threadIdx.x % 4 * 2]);
  }
};

// Where an item's chunks come from: everything that is the same for all of them.
template <typename T>
struct GroupScanSource {
  const T *k, *q, *v;  // the first token's rows; v, whatever stands for it, may be null
  int64_t k_step, q_step, v_step;
  std::byte* records;
  int64_t record_step, length;
  int keys, columns;
  bool vectors, v_vectors;

  template <class Item>
  __device__ __forceinline__ GroupScanSource(const DeltaInputs<T>& in, const Item& at,
                                             const DeltaRows<const T>& values, bool v_vectors,
                                             std::byte* records)
      : length(at.walk.length),
        keys(in.K),
        columns(at.columns - at.first_column),
        vectors(in.vectors),
        v_vectors(v_vectors) {
    const DeltaChunk first(at.walk, 0, 1);
    const int key_head = at.head / in.group();
    k = first.rows(in.k, key_head);
    q = first.rows(in.q, key_head);
    v = values.data && !at.units ? first.rows(values, at.head) + at.first_column : nullptr;
    k_step = first.row_step(in.k);
    q_step = first.row_step(in.q);
    v_step = v ? first.row_step(values) : 0;
    const auto record = [&](int64_t number) {
      return reinterpret_cast<std::byte*>(delta_record<T>(records, at.row(number), 64).A);
    };
    this->records = record(0);
    record_step = record(1) - record(0);
  }

  // Starts the copies of a chunk, by kThreads neighbouring threads.
  template <int kThreads = kGroup, class Tiles>
  __device__ __forceinline__ void fetch(const Tiles& to, int64_t number) const {
    constexpr int kChunk = Tiles::kChunk, kKeys = Tiles::kLayout.keys;
    const int thread = threadIdx.x % kThreads;
    const int64_t token = number * kChunk;
    const int tokens = static_cast<int>(min(int64_t{kChunk}, length - token));
    load_panels<kKeys, kThreads>(thread, to.k, k + token * k_step, k_step, tokens, keys, vectors);
    const T* const A = reinterpret_cast<const T*>(records + number * record_step);
    const T* const P = A + kChunk * kChunk;
    const auto* const rows = reinterpret_cast<const float*>(P + kChunk * kChunk);
    load_panels<kChunk, kThreads>(thread, to.A, A, kChunk, kChunk, kChunk, true);
    static_assert(kDeltaRecordRows * kChunk == 4 * kGroup);
    if (thread < kGroup) copy_async<16>(to.rows + 4 * thread, rows + 4 * thread);
    load_panels<kChunk, kThreads>(thread, to.v, v + (v ? token * v_step : 0), v_step,
                                  v ? tokens : 0, columns, v_vectors);
    if constexpr (Tiles::kWithQueries) {
      load_panels<kKeys, kThreads>(thread, to.q, q + token * q_step, q_step, tokens, keys, vectors);
      load_panels<kChunk, kThreads>(thread, to.P, P, kChunk, kChunk, kChunk, true);
    }
  }
};

// What a chunk leaves, behind the stages: of a backward pass S or its gradient, [64, K]; outputs, u or gX,
// [tokens, 64]. Two chunks in turn.
template <class Tiles, typename T, int kKeys>
struct GroupDesk {
  Panels<T> state, tokens;

  __device__ __forceinline__ GroupDesk(int stages, int64_t number, bool with_state) {
    const int state_numbers = with_state ? 64 * kKeys : 0;
    T* const first = reinterpret_cast<T*>(group_memory() + stages * Tiles::kStageBytes) +
                     number % 2 * (state_numbers + 64 * 64);
    state = {first, 64};
    tokens = {first + state_numbers, 64};
  }
};

// The turns of the block's two groups for one item, whose chunks are counted from 0 in the order of the walk.
class GroupTurns {
 public:
  __device__ __forceinline__ explicit GroupTurns(int stages) : stages_(stages) {}

  // The group that moves data. fill(stage, i) starts chunk i's copies; send(i) stores what it left.
  template <class Fill, class Send>
  __device__ __forceinline__ void move(int64_t chunks, const Fill& fill, const Send& send) {
    const auto next = [&](int stage) { return stage + 1 == stages_ ? 0 : stage + 1; };
    int stage = 0, before = 0;
#pragma unroll 1
    for (int64_t i = 0; i < chunks; ++i) {
      if (i >= stages_) finish(stage, i - stages_, send);
      fill(stage, i);
      commit_copies();
      if (i > 0) hand_over<1>(before);
      before = stage;
      stage = next(stage);
    }
    if (chunks > 0) hand_over<0>(before);
    if (chunks < stages_) stage = 0;
#pragma unroll 1
    for (int64_t i = max(int64_t{0}, chunks - stages_); i < chunks; ++i, stage = next(stage))
      finish(stage, i, send);
  }

  // The group that computes.
  __device__ __forceinline__ int take() const {
    barrier_wait(kFull + stage_, 2 * kGroup);
    return stage_;
  }
  // Chunk i's place on the desk is free.
  __device__ __forceinline__ void before_putting(int64_t i) const {
    if (i >= 2) barrier_wait(kSent + i % 2, 2 * kGroup);
  }
  // All has been read, all has been put.
  __device__ __forceinline__ void used() {
    barrier_arrive(kEmpty + stage_, 2 * kGroup);
    stage_ = stage_ + 1 == stages_ ? 0 : stage_ + 1;
  }
  // After an item; no barrier is left half met.
  __device__ __forceinline__ void close(int64_t chunks) {
    for (int64_t i = max(int64_t{0}, chunks - 2); i < chunks; ++i)
      barrier_wait(kSent + i % 2, 2 * kGroup);
    stage_ = 0;
  }

 private:
  static constexpr int kFull = 1, kEmpty = kFull + DeltaLayout::kMostGroupScanStages;
  static constexpr int kSent = kEmpty + DeltaLayout::kMostGroupScanStages;
  int stages_, stage_ = 0;

  template <int kPending>
  __device__ __forceinline__ void hand_over(int stage) const {
    wait_copies<kPending>();
    barrier_arrive(kFull + stage, 2 * kGroup);
  }
  template <class Send>
  __device__ __forceinline__ void finish(int stage, int64_t i, const Send& send) const {
    barrier_wait(kEmpty + stage, 2 * kGroup);
    send(i);
    barrier_arrive(kSent + i % 2, 2 * kGroup);
  }
};

// ---- Between registers and memory ----------------------------------------------------------------

template <typename T, int kTiles>
__device__ __forceinline__ void round_sums(FragmentA<T> (&to)[kTiles / 2],
                                           const Sums<kTiles>& sums) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) to[k] = operand<T>(sums, k);
}

// X^T = (beta o (V - read_k o K S))^T from K S and V, both turned.
template <typename T, int kDepth, class Tiles>
__device__ __forceinline__ void round_differences(FragmentA<T> (&to)[kDepth],
                                                  const Sums<2 * kDepth>& sums,
                                                  const FragmentA<T> (&v)[kDepth],
                                                  const Tiles& tile) {
#pragma unroll
  for (int t = 0; t < kDepth; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 beta = tile.row(kBeta, t, half), read = tile.row(kReadK, t, half);
      const auto& of = sums.tiles[2 * t + half];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        to[t].words[2 * half + r] = pair_from_floats<T>(
            beta.x * (value_of(v[t], r, 2 * half) - read.x * of[2 * r]),
            beta.y * (value_of(v[t], r, 2 * half + 1) - read.y * of[2 * r + 1]));
    }
}
// (write o u)^T
template <typename T, int kDepth, class Tiles>
__device__ __forceinline__ void round_written(FragmentA<T> (&to)[kDepth], const Sums<2 * kDepth>& u,
                                              const Tiles& tile) {
#pragma unroll
  for (int t = 0; t < kDepth; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 write = tile.row(kWrite, t, half);
      const auto& of = u.tiles[2 * t + half];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        to[t].words[2 * half + r] =
            pair_from_floats<T>(write.x * of[2 * r], write.y * of[2 * r + 1]);
    }
}
// (read_q o Q S)^T
template <int kTiles, class Tiles>
__device__ __forceinline__ void scale_reads(Sums<kTiles>& reads, const Tiles& tile) {
#pragma unroll
  for (int t = 0; t < kTiles / 2; ++t)
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
}
// gu^T = (write o (K gS') + P^T gO)^T
template <typename T, int kDepth, class Tiles>
__device__ __forceinline__ void round_upstream(FragmentA<T> (&to)[kDepth],
                                               const Sums<2 * kDepth>& sums,
                                               const Sums<2 * kDepth>& through_p,
                                               const Tiles& tile) {
#pragma unroll
  for (int t = 0; t < kDepth; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 write = tile.row(kWrite, t, half);
      const auto& of = sums.tiles[2 * t + half];
      const auto& more = through_p.tiles[2 * t + half];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        to[t].words[2 * half + r] = pair_from_floats<T>(
            fmaf(write.x, of[2 * r], more[2 * r]), fmaf(write.y, of[2 * r + 1], more[2 * r + 1]));
    }
}
// (read_q o gO)^T
template <typename T, int kDepth, class Tiles>
__device__ __forceinline__ void scale_upstream(FragmentA<T> (&go)[kDepth], const Tiles& tile) {
#pragma unroll
  for (int t = 0; t < kDepth; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 read = tile.row(kReadQ, t, half);
#pragma unroll
      for (int r = 0; r < 2; ++r)
        go[t].words[2 * half + r] = pair_from_floats<T>(read.x * value_of(go[t], r, 2 * half),
                                                        read.y * value_of(go[t], r, 2 * half + 1));
    }
}
// (-beta read_k o gX)^T
template <typename T, int kDepth, class Tiles>
__device__ __forceinline__ void round_corrections(FragmentA<T> (&to)[kDepth],
                                                  const Sums<2 * kDepth>& gx, const Tiles& tile) {
#pragma unroll
  for (int t = 0; t < kDepth; ++t)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 beta = tile.row(kBeta, t, half), read = tile.row(kReadK, t, half);
      const auto& of = gx.tiles[2 * t + half];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        to[t].words[2 * half + r] =
            pair_from_floats<T>(-beta.x * read.x * of[2 * r], -beta.y * read.y * of[2 * r + 1]);
    }
}

// panels [64, 16 kDepth] <- the group's operand A.
template <typename T, int kDepth>
__device__ __forceinline__ void put_rows(const Panels<T>& panels, const FragmentA<T> (&a)[kDepth]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
    store_matrices<false>(panels.at(16 * warp + lane % 16, 16 * k + lane / 16 * 8), a[k].words);
}
// panels [16 kDepth, 64] <- its transpose.
template <typename T, int kDepth>
__device__ __forceinline__ void put_columns(const Panels<T>& panels,
                                            const FragmentA<T> (&a)[kDepth]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
  for (int k = 0; k < kDepth; ++k)
    store_matrices<true>(panels.at(16 * k + lane % 8 + lane / 16 * 8, 16 * warp + lane / 8 % 2 * 8),
                         a[k].words);
}
// to [64 rows, step apart] <- panels [64, kColumns], by a group: whole rows up to `rows`, of them `columns`.
template <int kColumns, typename T>
__device__ __forceinline__ void send_rows(T* to, int64_t step, int rows, int columns, bool vectors,
                                          const Panels<T>& panels) {
  constexpr int kPacks = kColumns / 8, kPass = kGroup / kPacks, kPasses = 64 / kPass;
  const int thread = threadIdx.x % kGroup;
  if (vectors) {
    const int first = thread / kPacks, column = thread % kPacks * 8;
    const auto* const from = reinterpret_cast<const uint4*>(panels.at(first, column));
    uint4 packs[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) packs[i] = from[i * kPass * 8];  // multiples of eight rows on
    const int valid = column < columns ? rows - first : 0;
    const int64_t pass_step = kPass * step;
    T* at = to + first * step + column;
#pragma unroll
    for (int i = 0; i < kPasses; ++i, at += pass_step)
      if (i * kPass < valid) *reinterpret_cast<uint4*>(at) = packs[i];
    return;
  }
#pragma unroll 1
  for (int i = thread; i < 64 * kColumns; i += kGroup) {
    const int row = i / kColumns, column = i % kColumns;
    if (row < rows && column < columns) to[row * step + column] = *panels.at(row, column);
  }
}
// to <- panels [64, 64 kPanels] as they lie in shared memory, by a group.
template <int kPanels, typename T>
__device__ __forceinline__ void send_panels(T* to, const Panels<T>& panels) {
  constexpr int kPasses = kPanels * 64 * 64 / 8 / kGroup;
  const int thread = threadIdx.x % kGroup;
  const auto* const from = reinterpret_cast<const uint4*>(panels.data) + thread;
  auto* const at = reinterpret_cast<uint4*>(to) + thread;
  uint4 packs[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) packs[i] = from[i * kGroup];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) at[i * kGroup] = packs[i];
}

// What a block's 64 columns of V leave in the workspace for a chunk: S [values, keys] and u [tokens, values], or
// their gradients, as Panels.
template <int kKeys, typename T>
struct GroupScanWorkspace {
  T *states, *corrections;
  const DeltaScanCut& cut;
  int first_value;

  __device__ __forceinline__ Panels<T> state(int64_t row) const {
    return {states + row * cut.state_numbers(kKeys) + int64_t{1} * first_value * kKeys, 64};
  }
  __device__ __forceinline__ void send_state(int64_t row, const Panels<T>& panels) const {
    send_panels<kKeys / 64>(state(row).data, panels);
  }
  __device__ __forceinline__ void send_corrections(int64_t row, const Panels<T>& panels) const {
    send_panels<1>(corrections + row * cut.correction_numbers(64) + int64_t{1} * first_value * 64,
                   panels);
  }
};

// For BFloat16 and Float16, 64 and 128 keys.
template <typename T>
void launch_delta_group_scan(const DeltaScanArgs<T>& args, bool outputs, int64_t padded_keys,
                             const LaunchShape& shape, GpuStream stream);
template <typename T>
void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<T>& args, int64_t padded_keys,
                                     const LaunchShape& shape, GpuStream stream);

}  // namespace linescan
