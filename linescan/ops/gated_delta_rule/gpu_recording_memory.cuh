// The scan that makes its records (group_recording_scan.cu): what a block has in shared memory, and on which ways it comes and goes.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"
#include "linescan/ops/gated_delta_rule/gpu_record_pairs.cuh"

namespace linescan {

inline constexpr int kRecordingChains = 2;  // groups of a block that carry states

// A chunk in shared memory: its tokens in a stage, its record in one of two places.
template <typename T, int kKeys>
struct RecordingTiles : DeltaSizes<T, kKeys>, GroupScanRows {
  using Sizes = DeltaSizes<T, kKeys>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr int kValues = kRecordingChains * 64;
  static constexpr int kStages = DeltaLayout::kRecordingStages;
  static constexpr int64_t kStageBytes = kLayout.recording_stage_bytes();
  static constexpr int64_t kRecordBytes = kLayout.record_bytes();
  static constexpr int64_t kBytes = kLayout.recording_scan_bytes();
  static_assert(kChunk == 64);

  Panels<T> k, q, v, A, P;

  __device__ __forceinline__ RecordingTiles(int stage, int turn) {
    T* const tokens = reinterpret_cast<T*>(group_memory() + stage * kStageBytes);
    k = {tokens, kChunk};
    q = {tokens + kChunk * kKeys, kChunk};
    v = {tokens + 2 * kChunk * kKeys, kChunk};
    const DeltaRecord<T> record = delta_record<T>(records(), turn, kChunk);
    A = {record.A, kChunk};
    P = {record.P, kChunk};
    rows = record.rows;
  }
  static __device__ __forceinline__ std::byte* records() {
    return reinterpret_cast<std::byte*>(group_memory()) + kStages * kStageBytes;
  }
};

// Where an item's tokens come from and its outputs go.
template <typename T>
struct RecordingWays {
  GroupScanSource<T> source;
  GroupScanOutputs<T> outputs;
  RecordGateRows gates;
  // Whether all come and go in boxes, and where the first of v is; the head of k and q.
  bool boxed;
  int key_head;
  BoxPlace first;
  // Of the records in memory.
  int64_t first_row;
  int row_step;
  int chunks;
  int64_t next_item;  // or a number before it

  template <class Item>
  __device__ __forceinline__ RecordingWays(const DeltaScanArgs<T>& args,
                                           const GroupScanBoxes& boxes, const Item& at,
                                           int64_t next_item)
      : source(args.in, args.sequences, at, args.in.v, args.in.vectors, args.records),
        outputs(args.o, args.vectors, args.in.V, at),
        gates(args.in, at.walk, at.head),
        boxed(boxes.valid && tokens_are_box(at.walk, /*whole=*/false, source.packed)),
        key_head(source.key_head),
        first(source.template place<64>(0)),
        first_row(at.row(0)),
        row_step(at.value_heads),
        chunks(static_cast<int>(at.chunks)),
        next_item(next_item) {}

  __device__ __forceinline__ int tokens_of(int number) const {
    return static_cast<int>(min(int64_t{64}, source.walk.length - int64_t{64} * number));
  }
};

// What makes records has for itself, behind the places of records.
template <typename T, class Tiles>
struct RecordingMemory {
  static constexpr int kChunk = Tiles::kChunk, kStride = Tiles::kSquare;
  struct Turn {
    RecordDecays<kChunk> decays;
    float gates[2 * kChunk];  // and betas
    float factor_q[kChunk], factor_k[kChunk];
  };
  float L[kChunk * kStride];
  Turn turns[2];
  uint64_t arrivals[Tiles::kStages + 1];  // an even number
  static constexpr int kWays = DeltaLayout::kRecordingWays;
  unsigned char ways_at[kWays][DeltaLayout::kRecordingWaysBytes];
  alignas(16) T trays[kRecordingChains][64 * 64];  // RecordingTray

  static __device__ __forceinline__ RecordingMemory& get() {
    return *reinterpret_cast<RecordingMemory*>(Tiles::records() + 2 * Tiles::kRecordBytes);
  }
  // Of an item, of the one before it, whose last outputs leave, and of the next one: there are no registers for them. A fourth place,
  // so that nobody reads what is written.
  __device__ __forceinline__ RecordingWays<T>& ways(int place) {
    static_assert(sizeof(RecordingWays<T>) <= sizeof(ways_at[0]) &&
                  std::is_trivially_copyable_v<RecordingWays<T>>);
    return *reinterpret_cast<RecordingWays<T>*>(ways_at[place]);
  }
};

// What a chain leaves of a chunk for a backward pass (GroupScanWorkspace): panels of S^T and u^T, of which a warp sends its 16 rows by
// itself, by way of a part of the chain's tray, so that nobody waits for anybody. Addresses are found anew for every panel.
template <typename T, int kKeys>
class RecordingTray {
 public:
  static constexpr int kDepth = 64 / 16;

  __device__ __forceinline__ RecordingTray(T* tray, const DeltaScanArgs<T>& args, int first_value)
      : tray_(tray), to_{args.states, args.corrections, args.cut, first_value} {}

  __device__ __forceinline__ void send_state(int64_t row, int panel,
                                             const FragmentA<T> (&state)[kKeys / 16]) const {
    send(to_.state(row) + 64 * 64 * panel, &state[kDepth * panel]);
  }
  __device__ __forceinline__ void send_corrections(int64_t row,
                                                   const FragmentA<T> (&u)[kDepth]) const {
    send(to_.correction(row), u);
  }
  // All has been sent.
  __device__ __forceinline__ void close() const {
    if (read_thread() % 32 == 0) wait_sent();
  }

 private:
  T* tray_;
  GroupScanWorkspace<kKeys, T> to_;

  __device__ __forceinline__ void send(T* panel, const FragmentA<T>* rows) const {
    constexpr int kPart = 16 * 64;
    const int lane = static_cast<int>(read_thread() % 32),
              warp = static_cast<int>(read_thread() / 32 % 4);
    T *const own = tray_ + kPart * warp, *const to = panel + kPart * warp;
    if (lane == 0) wait_sent();
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kDepth; ++k)
      store_matrices<false>(own + lane % 16 * 64 + ((2 * k + lane / 16) ^ lane % 8) * 8,
                            rows[k].words);
    group_publish();
    __syncwarp();
    if constexpr (kHasBulkCopies) {
      if (lane == 0) send_bulk(to, own, kPart * sizeof(T));
    } else {
      for (int i = 8 * lane; i < kPart; i += 8 * 32)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(own + i);
      __syncwarp();
    }
  }
};

}  // namespace linescan
