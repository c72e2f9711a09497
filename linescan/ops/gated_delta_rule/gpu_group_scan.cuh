// What the two scans of warp groups share (group_scan.cu, group_reverse_scan.cu): who computes and who loads, what
// stands in shared memory, and how results leave.
//
// A block carries S^T of 64 columns of V, [64, K], in the registers of one warp group, 16 columns a warp. Another
// group only loads, some chunks ahead.
#pragma once

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/gated_delta_rule/gpu_scan.cuh"

namespace linescan {

inline constexpr int kGroup = DeltaLayout::kGroupScanThreads / 2;

// A chunk in shared memory. kOutputs: with q and P.
template <typename T, int kKeys, bool kOutputs>
struct GroupScanTiles : DeltaSizes<T, kKeys> {
  using Sizes = DeltaSizes<T, kKeys>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr int64_t kStageBytes = kLayout.group_scan_stage_bytes(kOutputs);
  static constexpr int64_t kWarpOutBytes = kLayout.warp_out_bytes();
  static constexpr int kRowOut = kLayout.row_out_stride(), kTokenOut = DeltaLayout::kTokenOutStride;
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
  // Where a warp that computes puts together what it stores.
  static __device__ __forceinline__ T* outbox(int stages) {
    return reinterpret_cast<T*>(group_memory() + stages * kStageBytes +
                                threadIdx.x / 32 * kWarpOutBytes);
  }
  // Of the two neighbouring tokens that stand at fragment_k(q, 2 half) of an operand of depth 16 t.
  __device__ __forceinline__ float2 row(DeltaRow which, int t, int half) const {
    return *reinterpret_cast<const float2*>(
        &rows[which * kChunk + 16 * t + 8 * half + threadIdx.x % 4 * 2]);
  }

  // By the group that loads. Columns of V from first_value on stand in `v`.
  __device__ __forceinline__ void fetch(const DeltaInputs<T>& in, const DeltaChunk& chunk,
                                        int key_head, const DeltaRows<const T>& values, int head,
                                        int first_value, bool vectors, std::byte* records,
                                        int64_t record_number) const {
    const int thread = threadIdx.x % kGroup;
    load_panels<kKeys, kGroup>(thread, k, chunk.rows(in.k, key_head), chunk.row_step(in.k),
                               chunk.tokens, in.K, in.vectors);
    const DeltaRecord<T> record = delta_record<T>(records, record_number, kChunk);
    load_panels<kChunk, kGroup>(thread, A, record.A, kChunk, kChunk, kChunk, true);
    constexpr int kNumbers = kDeltaRecordRows * kChunk;
    static_assert(kNumbers == 4 * kGroup);
    copy_async<16>(rows + 4 * thread, record.rows + 4 * thread);
    load_panels<kChunk, kGroup>(
        thread, v, values.data ? chunk.rows(values, head) + first_value : nullptr,
        chunk.row_step(values), values.data ? chunk.tokens : 0, in.V - first_value, vectors);
    if constexpr (kOutputs) {
      load_panels<kKeys, kGroup>(thread, q, chunk.rows(in.q, key_head), chunk.row_step(in.q),
                                 chunk.tokens, in.K, in.vectors);
      load_panels<kChunk, kGroup>(thread, P, record.P, kChunk, kChunk, kChunk, true);
    }
  }
};

// The turns of the block's two groups at the stages, round and round, through all items.
class GroupTurns {
 public:
  __device__ __forceinline__ explicit GroupTurns(int stages) : stages_(stages) {}

  // The group that loads: take a stage, start to copy, and hand over what was started before it.
  __device__ __forceinline__ int take_to_fill() const {
    if (rounds_ > 0) barrier_wait(kEmpty + stage_, 2 * kGroup);
    return stage_;
  }
  __device__ __forceinline__ void filling() {
    commit_copies();
    if (rounds_ > 0 || stage_ > 0) hand_over<1>(stage_ > 0 ? stage_ - 1 : stages_ - 1);
    advance();
  }
  __device__ __forceinline__ void filled_all() const {
    if (rounds_ > 0 || stage_ > 0) hand_over<0>(stage_ > 0 ? stage_ - 1 : stages_ - 1);
    for (int i = 0; i < stages_; ++i)  // no barrier is left half met
      if (rounds_ > 0 || i < stage_) barrier_wait(kEmpty + i, 2 * kGroup);
  }
  // The group that computes.
  __device__ __forceinline__ int take_filled() const {
    barrier_wait(kFull + stage_, 2 * kGroup);
    return stage_;
  }
  __device__ __forceinline__ void used() {
    barrier_arrive(kEmpty + stage_, 2 * kGroup);
    advance();
  }

 private:
  static constexpr int kFull = 1, kEmpty = kFull + DeltaLayout::kMostGroupScanStages;
  int stages_, stage_ = 0, rounds_ = 0;

  __device__ __forceinline__ void advance() {
    if (++stage_ < stages_) return;
    stage_ = 0;
    rounds_ = 1;
  }
  template <int kPending>
  __device__ __forceinline__ void hand_over(int stage) const {
    wait_copies<kPending>();
    group_publish();
    barrier_arrive(kFull + stage, 2 * kGroup);
  }
};

// ---- Between registers and memory ----------------------------------------------------------------

template <typename T, int kTiles>
__device__ __forceinline__ void round_sums(FragmentA<T> (&to)[kTiles / 2],
                                           const Sums<kTiles>& sums) {
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) to[k] = operand<T>(sums, k);
}

// to [16 of V, kKeys] <- the warp's part of S^T; whole rows.
template <class Tiles, typename T, int kDepth>
__device__ __forceinline__ void store_state_rows(T* to, T* outbox,
                                                 const FragmentA<T> (&state)[kDepth]) {
  constexpr int kKeys = 16 * kDepth, kPacks = kKeys / 8;
  const int lane = threadIdx.x % 32;
  __syncwarp();
  T* const at = outbox + lane % 16 * Tiles::kRowOut + lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < kDepth; ++k) store_matrices<false>(at + 16 * k, state[k].words);
  __syncwarp();
  using Numbers = Pack<T, 8>;
#pragma unroll
  for (int i = 0; i < 16 * kPacks / 32; ++i) {
    const int row = i * (32 / kPacks) + lane / kPacks, column = lane % kPacks * 8;
    *reinterpret_cast<Numbers*>(to + row * kKeys + column) =
        *reinterpret_cast<const Numbers*>(outbox + row * Tiles::kRowOut + column);
  }
}

// outbox [tokens, 16 of V] <- the warp's part of something [V, tokens].
template <class Tiles, typename T, int kDepth>
__device__ __forceinline__ void put_token_rows(T* outbox, const FragmentA<T> (&values)[kDepth]) {
  const int lane = threadIdx.x % 32;
  __syncwarp();
  T* const at = outbox + (lane % 8 + lane / 16 * 8) * Tiles::kTokenOut + lane / 8 % 2 * 8;
#pragma unroll
  for (int t = 0; t < kDepth; ++t)
    store_matrices<true>(at + 16 * t * Tiles::kTokenOut, values[t].words);
  __syncwarp();
}
// rows[token, ..] <- the outbox, for `tokens` of a chunk's and `columns` of its 16.
template <class Tiles, typename T>
__device__ __forceinline__ void send_token_rows(T* rows, int64_t step, int tokens, int columns,
                                                bool vectors, const T* outbox) {
  using Numbers = Pack<T, 8>;
  constexpr int kRows = 16;  // at once
  const int lane = threadIdx.x % 32, first = lane / 2, column = lane % 2 * 8;
  T* to = rows + first * step + column;
  const T* from = outbox + first * Tiles::kTokenOut + column;
  Numbers numbers[Tiles::kChunk / kRows];
#pragma unroll
  for (int i = 0; i < Tiles::kChunk / kRows; ++i)
    numbers[i] = *reinterpret_cast<const Numbers*>(from + i * kRows * Tiles::kTokenOut);
  const int64_t pass_step = kRows * step;
  if (vectors && columns >= 16 && tokens == Tiles::kChunk) {
#pragma unroll
    for (int i = 0; i < Tiles::kChunk / kRows; ++i, to += pass_step)
      *reinterpret_cast<Numbers*>(to) = numbers[i];
    return;
  }
#pragma unroll
  for (int i = 0; i < Tiles::kChunk / kRows; ++i, to += pass_step)
#pragma unroll
    for (int n = 0; n < 8; ++n)
      if (first + i * kRows < tokens && column + n < columns) to[n] = numbers[i].values[n];
}

// For BFloat16 and Float16, 64 and 128 keys.
template <typename T>
void launch_delta_group_scan(const DeltaScanArgs<T>& args, bool outputs, int64_t padded_keys,
                             const LaunchShape& shape, GpuStream stream);
template <typename T>
void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<T>& args, int64_t padded_keys,
                                     const LaunchShape& shape, GpuStream stream);

}  // namespace linescan
