// The gradients' kernel of warp groups (group_gradients.cu): what stands in its shared memory, and the turns that its warps
// take: two groups that compute, warps that move tiles (gpu_gradient_moves.cuh), and warps that finish gates
// (gpu_gradient_sums.cuh).
#pragma once

#include "linescan/ops/device_code/group_product.cuh"
#include "linescan/ops/device_code/row_boxes.cuh"
#include "linescan/ops/gated_delta_rule/gpu_gradients.cuh"

namespace linescan {

// Teams of warps beside the groups (gpu_gate_gradient.cuh says what a team is).
template <int kFirstThread, int kCount, int kBarrier>
struct GradientTeam {
  static constexpr int kThreads = kCount;
  static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x) - kFirstThread;
  }
  static __device__ __forceinline__ void meet() { barrier_wait(kBarrier, kThreads); }
};
using GradientMovers =
    GradientTeam<DeltaLayout::kGroupThreads, DeltaLayout::kGroupMovers, /*kBarrier=*/2>;
using GradientFinishers = GradientTeam<DeltaLayout::kGroupThreads + DeltaLayout::kGroupMovers,
                                       DeltaLayout::kGroupFinishers, /*kBarrier=*/3>;

// A block's turns, as each of its threads counts them.
//
//   stages     filled by the movers, used by the groups, who leave v's gradient in its tile
//   keys       filled by the movers, left by the groups, with the gradients of q and k in their tiles or without
//   value head `open` once the finishers are through with the one before, `closed` when the groups have left their sums
class GradientTurns {
 public:
  static constexpr int kStages = DeltaLayout::kGroupStages;
  static constexpr int kThreads = DeltaLayout::kGroupThreads;  // of the groups
  static constexpr int kMovers = DeltaLayout::kGroupMovers;
  static constexpr int kFinishers = DeltaLayout::kGroupFinishers;
  static constexpr int kMeet = 1;  // of the groups alone

  __device__ __forceinline__ explicit GradientTurns(uint64_t* arrivals)
      : arrivals_(arrivals), key_arrivals_(arrivals + kStages) {}
  // By one thread; then the block meets.
  __device__ __forceinline__ void begin() const {
    arrivals_.begin();
    key_arrivals_.begin();
  }

  // ---- Groups ----
  // The stage with the next slice of V.
  __device__ __forceinline__ int take() {
    arrivals_.wait(stage_);
    return stage_;
  }
  __device__ __forceinline__ void used() {
    barrier_arrive(kUsed + stage_, kThreads + kMovers);
    stage_ = (stage_ + 1) % kStages;
  }
  __device__ __forceinline__ void take_keys() { key_arrivals_.wait(0); }
  __device__ __forceinline__ void leave_keys() const {
    barrier_arrive(kKeysLeft, kThreads + kMovers);
  }
  __device__ __forceinline__ void wait_open() const { barrier_wait(kOpen, kThreads + kFinishers); }
  __device__ __forceinline__ void close() const { barrier_arrive(kClosed, kThreads + kFinishers); }

  // ---- Finishers ----
  __device__ __forceinline__ void open() const { barrier_arrive(kOpen, kThreads + kFinishers); }
  __device__ __forceinline__ void wait_closed() const {
    barrier_wait(kClosed, kThreads + kFinishers);
  }

  // ---- Movers ----
  // The stage that is filled next, once it has been used; whether it has been filled before.
  __device__ __forceinline__ bool used_before() const { return filled_ == kStages; }
  __device__ __forceinline__ int fill() {
    if (used_before()) barrier_wait(kUsed + stage_, kThreads + kMovers);
    return stage_;
  }
  __device__ __forceinline__ void filled() {
    arrivals_.arrive(stage_);
    stage_ = (stage_ + 1) % kStages;
    filled_ = min(filled_ + 1, kStages);
  }
  __device__ __forceinline__ const auto& arrivals() const { return arrivals_; }
  __device__ __forceinline__ bool keys_used_before() const { return keys_; }
  __device__ __forceinline__ void fill_keys() {
    if (keys_) barrier_wait(kKeysLeft, kThreads + kMovers);
    keys_ = true;
  }
  __device__ __forceinline__ void keys_filled() const { key_arrivals_.arrive(0); }
  __device__ __forceinline__ const auto& key_arrivals() const { return key_arrivals_; }
  // Calls empty(stage) for every stage that was filled last, once it has been used.
  template <class Empty>
  __device__ __forceinline__ void for_last(const Empty& empty) {
    stage_ = (stage_ + kStages - filled_) % kStages;
    for (int i = 0; i < filled_; ++i) {
      barrier_wait(kUsed + stage_, kThreads + kMovers);
      empty(stage_);
      stage_ = (stage_ + 1) % kStages;
    }
  }

  // ---- Groups and movers ----
  // The place of the next value head's rows of its record.
  __device__ __forceinline__ int next_record() {
    const int record = record_;
    record_ = record + 1 == DeltaLayout::kGroupRecords ? 0 : record + 1;
    return record;
  }

 private:
  static constexpr int kUsed = 4;
  static constexpr int kOpen = kUsed + kStages, kClosed = kOpen + 1, kKeysLeft = kClosed + 1;
  static constexpr int kArrivals = kKeysLeft + 1;
  static_assert(kArrivals + kStages < 16);

  Arrivals<kMovers, kThreads, kStages, kArrivals> arrivals_;
  Arrivals<kMovers, kThreads, 1, kArrivals + kStages> key_arrivals_;
  int stage_ = 0, filled_ = 0, record_ = 0;
  bool keys_ = false;
};

// Where a tile goes once the groups have left a gradient in it.
template <typename T>
struct GradientParcel {
  T* to;  // null: nowhere
  int64_t step;
  int rows, columns;  // that there are
  BoxPlace place;     // the same, where it goes in boxes
  bool boxes;
};

// What stands where in shared memory.
template <typename T, int kKeys>
struct GroupTiles : DeltaSizes<T, kKeys> {
  using Sizes = DeltaSizes<T, kKeys>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr int kThreads = GradientTurns::kThreads, kSlice = DeltaLayout::kPanel;
  static constexpr int kOver = DeltaLayout::kGroupOverStride;
  static constexpr int kKeyWarps = 2, kOwn = kKeys / 2, kShares = 2;       // of the two groups
  static constexpr int kTile = kChunk * kKeys, kSquare = kChunk * kChunk;  // numbers
  static constexpr int64_t kStageBytes = kLayout.group_stage_bytes();

  Panels<T> k, q, H, M;
  float *over, *rows, *own, *norms;
  DeltaDecays<kChunk>* decays;
  unsigned char* stages;
  uint64_t* arrivals;          // GradientTurns
  GradientParcel<T>* parcels;  // of v of each stage, of q and of k

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
    own = rows + DeltaLayout::kGroupRecords * kDeltaRecordRows * kChunk;
    norms = own + kDeltaRecordRows * kChunk;
    over = norms + DeltaLayout::kGroupNormRows * kChunk;
    parcels = reinterpret_cast<GradientParcel<T>*>(over + kChunk * kOver);
    arrivals = reinterpret_cast<uint64_t*>(parcels + DeltaLayout::kGroupParcels);
    static_assert(sizeof(GradientParcel<T>) == DeltaLayout::kGroupParcelBytes);
  }
  static __device__ __forceinline__ void meet() { barrier_wait(GradientTurns::kMeet, kThreads); }
  // What passes over tokens, summed up over rows g and g + 8 of a warp's.
  __device__ __forceinline__ float* over_of(int group, int warp, int g) const {
    return over + ((group * (kChunk / 16) + warp) * 8 + g) * kOver;
  }
  __device__ __forceinline__ float* record_rows(int record) const {
    return rows + record * kDeltaRecordRows * kChunk;
  }
  __device__ __forceinline__ float* share(GradientRow which, int group = 0) const {
    return own + (which < kCorrection ? kShares * which + group : which + kCorrection) * kChunk;
  }
};

// One slice of V in a stage: states [slice, keys], u^T [slice, chunk], and tiles [chunk, slice].
template <class Tiles, typename T>
struct GroupStage {
  Panels<T> S, gS, u, go, gx, v;

  __device__ __forceinline__ GroupStage(const Tiles& tiles, int stage) {
    constexpr int kState = Tiles::kSlice * Tiles::kOwn * 2, kTokens = Tiles::kSquare;
    T* const first = reinterpret_cast<T*>(tiles.stages + stage * Tiles::kStageBytes);
    S = {first, Tiles::kSlice};
    gS = {first + kState, Tiles::kSlice};
    T* const tokens = first + 2 * kState;
    u = {tokens, Tiles::kSlice};
    go = {tokens + kTokens, Tiles::kChunk};
    gx = {tokens + 2 * kTokens, Tiles::kChunk};
    v = {tokens + 3 * kTokens, Tiles::kChunk};
  }
};

}  // namespace linescan
