// What the scans of warp groups share: who computes and who moves data, what stands in shared memory, and how results
// leave.
//
// A block carries S^T of 64 columns of V, [64, K], in the registers of one warp group, 16 columns a warp. What that group
// puts on a desk in shared memory, states and corrections, the last group of the block stores, who also loads, some chunks
// ahead; in a forward pass a group between them makes outputs of it first. (Where heads are many a block has two such groups
// and 128 columns: group_wide_scan.cu. With more keys two groups carry S^T, and load themselves: gpu_group_pair.cuh.)
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_group_operands.cuh"
#include "linescan/ops/gated_delta_rule/gpu_scan.cuh"

namespace linescan {

inline constexpr int kGroup = DeltaLayout::kGroupScanThreads / 2;

// A chunk in shared memory. kOutputs: with q and P.
template <typename T, int kKeys, bool kOutputs, int kOfValues = 64>
struct GroupScanTiles : DeltaSizes<T, kKeys, kKeys == DeltaLayout::kPairKeys> {
  using Sizes = DeltaSizes<T, kKeys, kKeys == DeltaLayout::kPairKeys>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr bool kWithQueries = kOutputs;
  static constexpr int kValues = kOfValues;
  static constexpr int64_t kStageBytes = kLayout.group_scan_stage_bytes(kOutputs, kValues);
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
    v = take(kValues);
    rows = reinterpret_cast<float*>(next);
  }
  // Of the two neighbouring tokens that stand at fragment_k(q, 2 half) of an operand of depth 16 t.
  __device__ __forceinline__ float2 row(DeltaRow which, int t, int half) const {
    return *reinterpret_cast<const float2*>(
        &rows[which * kChunk + 16 * t + 8 * half + threadIdx.x % 4 * 2]);
  }
};

// Of the tensors of tokens; v: whatever stands for it; valid: there are such of all of them.
struct GroupScanBoxes {
  RowBoxes k, q, v, o;
  bool valid;
};
// `o`: null where no outputs are wanted.
template <typename T>
GroupScanBoxes group_scan_boxes(const DeltaInputs<T>& in, const DeltaSequences& sequences,
                                const DeltaRows<const T>& v, const DeltaRows<T>& o) {
  GroupScanBoxes boxes = {};
  boxes.valid = describe_tokens(boxes.k, in.k, in.heads, in.K, sequences) &&
                describe_tokens(boxes.q, in.q, in.heads, in.K, sequences) &&
                describe_tokens(boxes.v, v, in.value_heads, in.V, sequences) &&
                (!o.data || describe_tokens(boxes.o, o, in.value_heads, in.V, sequences));
  return boxes;
}

// Where an item's chunks come from: everything that is the same for all of them.
template <typename T>
struct GroupScanSource {
  const T *k, *q, *v;  // the first token's rows; v, whatever stands for it, may be null
  int64_t k_step, q_step, v_step;
  std::byte* records;
  int64_t record_step;
  int keys, columns, first_column, head, key_head;
  bool vectors, v_vectors, packed;
  DeltaWalk walk;

  template <class Item>
  __device__ __forceinline__ GroupScanSource(const DeltaInputs<T>& in,
                                             const DeltaSequences& sequences, const Item& at,
                                             const DeltaRows<const T>& values, bool v_vectors,
                                             std::byte* records)
      : keys(in.K),
        columns(at.columns - at.first_column),
        first_column(at.first_column),
        head(at.head),
        key_head(at.head / in.group()),
        vectors(in.vectors),
        v_vectors(v_vectors),
        packed(sequences.bounds),
        walk(at.walk) {
    const DeltaChunk first(at.walk, 0, 1);
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

  // Starts the copies of a chunk, by kThreads neighbouring threads: pack by pack.
  template <int kThreads, class Tiles>
  __device__ __forceinline__ void fetch(const Tiles& to, int64_t number) const {
    constexpr int kSquare = Tiles::kChunk * Tiles::kChunk;
    const T* const squares = record(number);
#pragma unroll
    for (int i = threadIdx.x % kThreads * 8; i < kSquare; i += kThreads * 8) {
      copy_async<16>(to.A.data + i, squares + i);
      if constexpr (Tiles::kWithQueries) copy_async<16>(to.P.data + i, squares + kSquare + i);
    }
    fetch_rows<kThreads>(to, squares + 2 * kSquare);
    fetch_tokens<kThreads>(to, number);
  }
  // The same by the movers of GroupTurns, in boxes where there are such.
  template <class Tiles, class Arrivals>
  __device__ __forceinline__ void fetch(const Tiles& to, int64_t number,
                                        const GroupScanBoxes& boxes, const Arrivals& arrivals,
                                        int stage) const {
    constexpr int kChunk = Tiles::kChunk;
    constexpr int kPanels = Tiles::kLayout.keys / 64, kPanelBytes = kChunk * 64 * 2;
    constexpr int kValuePanels = Tiles::kValues / 64;
    constexpr int kOfEach = Tiles::kWithQueries ? 2 : 1;  // k and q, A and P
    const int thread = threadIdx.x % kGroup;
    const bool boxed = are_boxes<kChunk>(number, boxes);
    const int in_boxes = boxed ? kOfEach * kPanels + (v ? kValuePanels : 0) : 0;
    arrivals.expect(thread, stage, (kOfEach + in_boxes) * kPanelBytes);
    const T* const squares = record(number);
    arrivals.copy(thread, stage, to.A.data, squares, kPanelBytes);
    if constexpr (Tiles::kWithQueries)
      arrivals.copy(thread, stage, to.P.data, squares + kChunk * kChunk, kPanelBytes);
    fetch_rows<kGroup>(to, squares + 2 * kChunk * kChunk);
    if (boxed) {
      if (thread == 0) {
        const unsigned barrier = arrivals.barrier(stage);
        BoxPlace at = place<kChunk>(number);
        for (int panel = 0; v && panel < kValuePanels; ++panel, at.number += 64)
          fetch_box(boxes.v, at, to.v.data + panel * kChunk * 64, barrier);
        at.head = key_head;
        at.number = 0;
        for (int panel = 0; panel < kPanels; ++panel, at.number += 64) {
          fetch_box(boxes.k, at, to.k.data + panel * kChunk * 64, barrier);
          if constexpr (Tiles::kWithQueries)
            fetch_box(boxes.q, at, to.q.data + panel * kChunk * 64, barrier);
        }
      }
      if (!v) load_panels<Tiles::kValues, kGroup>(thread, to.v, v, 0, 0, columns, v_vectors);
    } else {
      fetch_tokens<kGroup>(to, number);
    }
    arrivals.arrive(stage);
  }

  // Whether a chunk's tokens come and go in boxes.
  template <int kChunk>
  __device__ __forceinline__ bool are_boxes(int64_t number, const GroupScanBoxes& boxes) const {
    return boxes.valid && tokens_are_box(walk, walk.length - number * kChunk >= kChunk, packed);
  }
  // Of the columns of V.
  template <int kChunk>
  __device__ __forceinline__ BoxPlace place(int64_t number) const {
    return {first_column, head, static_cast<int>(walk.token(number * kChunk)),
            static_cast<int>(walk.batch)};
  }

 private:
  // A; P and the rows are behind it.
  __device__ __forceinline__ const T* record(int64_t number) const {
    return reinterpret_cast<const T*>(records + number * record_step);
  }
  template <int kThreads, class Tiles>
  __device__ __forceinline__ void fetch_rows(const Tiles& to, const T* behind_squares) const {
    static_assert(kDeltaRecordRows * Tiles::kChunk == 4 * kGroup && kThreads >= kGroup);
    const int first = 4 * (static_cast<int>(threadIdx.x) % kThreads);
    if (first < 4 * kGroup)
      copy_async<16>(to.rows + first, reinterpret_cast<const float*>(behind_squares) + first);
  }
  template <int kThreads, class Tiles>
  __device__ __forceinline__ void fetch_tokens(const Tiles& to, int64_t number) const {
    constexpr int kChunk = Tiles::kChunk, kKeys = Tiles::kLayout.keys;
    const int thread = threadIdx.x % kThreads;
    const int64_t token = number * kChunk;
    const int tokens = static_cast<int>(min(int64_t{kChunk}, walk.length - token));
    load_panels<kKeys, kThreads>(thread, to.k, k + token * k_step, k_step, tokens, keys, vectors);
    load_panels<Tiles::kValues, kThreads>(thread, to.v, v + (v ? token * v_step : 0), v_step,
                                          v ? tokens : 0, columns, v_vectors);
    if constexpr (Tiles::kWithQueries)
      load_panels<kKeys, kThreads>(thread, to.q, q + token * q_step, q_step, tokens, keys, vectors);
  }
};

// What a chunk leaves, behind the stages: S in front of it or the gradient of S behind it, [64, K]; u, later outputs, or gX,
// [tokens, 64]. Two chunks in turn.
template <class Tiles, typename T, int kKeys>
struct GroupDesk {
  static constexpr int kNumbers = 64 * kKeys + 64 * 64;
  Panels<T> state, tokens;

  __device__ __forceinline__ GroupDesk(int stages, int64_t number) {
    T* const first = desks(stages) + number % 2 * kNumbers;
    state = {first, 64};
    tokens = {first + 64 * kKeys, 64};
  }
  // Behind the desks: where copies arrive.
  static __device__ __forceinline__ uint64_t* arrivals(int stages) {
    return reinterpret_cast<uint64_t*>(desks(stages) + 2 * kNumbers);
  }

 private:
  static __device__ __forceinline__ T* desks(int stages) {
    return reinterpret_cast<T*>(group_memory() + stages * Tiles::kStageBytes);
  }
};

// The turns of the block's groups for one item, whose chunks are counted from 0 in the order of the walk. kUsers groups
// use a stage: the one that carries states, and perhaps one that makes outputs of what that one puts on the desk. Without a
// desk: what a chunk leaves stands in its stage.
template <int kUsers, bool kDesk = true>
class GroupTurns {
 public:
  __device__ __forceinline__ GroupTurns(int stages, uint64_t* arrivals)
      : arrivals_(arrivals), stages_(stages) {}
  // By one thread; then the block meets.
  __device__ __forceinline__ void begin() const { arrivals_.begin(); }

  // The group that moves data. fill(stage, i, arrivals) starts chunk i's copies; send(stage, i) stores what it left.
  template <class Fill, class Send>
  __device__ __forceinline__ void move(int64_t chunks, const Fill& fill, const Send& send) {
    const auto next = [&](int stage) { return stage + 1 == stages_ ? 0 : stage + 1; };
    int stage = 0;
#pragma unroll 1
    for (int64_t i = 0; i < chunks; ++i, stage = next(stage)) {
      if (i >= stages_) finish(stage, i - stages_, send);
      fill(stage, i, arrivals_);
    }
    if (chunks < stages_) stage = 0;
#pragma unroll 1
    for (int64_t i = max(int64_t{0}, chunks - stages_); i < chunks; ++i, stage = next(stage))
      finish(stage, i, send);
  }

  // Groups that use stages: the next one, once it is filled.
  __device__ __forceinline__ int take() {
    const int stage = stage_;
    arrivals_.wait(stage);
    stage_ = stage + 1 == stages_ ? 0 : stage + 1;
    return stage;
  }
  // All has been read, all has been put.
  __device__ __forceinline__ void used(int stage) const {
    barrier_arrive(kEmpty + stage, (kUsers + 1) * kGroup);
  }

  // The group that carries states: chunk i's place on the desk is free.
  __device__ __forceinline__ void before_putting(int64_t i) const {
    if (i >= 2) barrier_wait(kSent + i % 2, 2 * kGroup);
  }
  // After an item; no barrier is left half met.
  __device__ __forceinline__ void close(int64_t chunks) {
    static_assert(kDesk);
    for (int64_t i = max(int64_t{0}, chunks - 2); i < chunks; ++i)
      barrier_wait(kSent + i % 2, 2 * kGroup);
    restart();
  }
  // It has put chunk i's state, or its tokens, and the group that makes outputs takes them.
  __device__ __forceinline__ void has_put_state(int64_t i) const {
    barrier_arrive(kState + i % 2, 2 * kGroup);
  }
  __device__ __forceinline__ void wait_state(int64_t i) const {
    barrier_wait(kState + i % 2, 2 * kGroup);
  }
  __device__ __forceinline__ void has_put_tokens(int64_t i) const {
    barrier_arrive(kTokens + i % 2, 2 * kGroup);
  }
  __device__ __forceinline__ void wait_tokens(int64_t i) const {
    barrier_wait(kTokens + i % 2, 2 * kGroup);
  }
  __device__ __forceinline__ void restart() { stage_ = 0; }

 private:
  static constexpr int kPlaces = DeltaLayout::kMostGroupScanStages;
  static constexpr int kEmpty = 1, kSent = kEmpty + kPlaces;
  static constexpr int kState = kSent + 2, kTokens = kState + 2, kFull = kTokens + 2;
  static_assert(kFull + kPlaces <= 16);

  Arrivals<kGroup, kUsers * kGroup, kPlaces, kFull> arrivals_;
  int stages_, stage_ = 0;

  template <class Send>
  __device__ __forceinline__ void finish(int stage, int64_t i, const Send& send) const {
    barrier_wait(kEmpty + stage, (kUsers + 1) * kGroup);
    send(stage, i);
    if constexpr (kDesk)
      barrier_arrive(kSent + i % 2, 2 * kGroup);
    else
      barrier_wait(kSent, kGroup);  // the stage can be filled
  }
};

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
// Where what tokens get from an item goes, outputs or gX: a tensor with V numbers a row; null where it is not wanted.
template <typename T>
struct GroupScanOutputs {
  T* first;  // the first token's row
  int64_t step;
  int columns;
  bool vectors;

  template <class Item>
  __device__ __forceinline__ GroupScanOutputs(const DeltaRows<T>& rows, bool vectors, int V,
                                              const Item& at)
      : columns(V - at.first_column), vectors(vectors) {
    const DeltaChunk start(at.walk, 0, 1);
    first = rows.data ? start.rows(rows, at.head) + at.first_column : nullptr;
    step = start.row_step(rows);
  }
  // By the group that moves data: panels [64, kValues], which are published.
  template <int kValues>
  __device__ __forceinline__ void send(int64_t number, const Panels<T>& panels,
                                       const GroupScanSource<T>& source,
                                       const GroupScanBoxes& boxes) const {
    constexpr int kChunk = 64;
    if (source.template are_boxes<kChunk>(number, boxes)) {
      if (threadIdx.x % kGroup != 32) return;  // another warp than the one that fetches
      BoxPlace at = source.template place<kChunk>(number);
      for (int panel = 0; panel < kValues / 64; ++panel, at.number += 64)
        store_box(boxes.o, at, panels.data + panel * kChunk * 64);
      wait_sent();
    } else {
      send_by_rows<kValues>(number, panels, source.walk);
      wait_sent();  // for what a thread may have sent before
    }
  }
  // By any group, for itself.
  template <int kValues>
  __device__ __forceinline__ void send_by_rows(int64_t number, const Panels<T>& panels,
                                               const DeltaWalk& walk) const {
    constexpr int kChunk = 64;
    const int64_t token = number * kChunk;
    send_rows<kValues>(first + token * step, step,
                       static_cast<int>(min(int64_t{kChunk}, walk.length - token)), columns,
                       vectors, panels);
  }
};
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

// What a block's 64 columns of V leave in the workspace for a chunk, as Panels: S or gS' [values, keys], and u [tokens, values]
// where there is room for it.
template <int kKeys, typename T>
struct GroupScanWorkspace {
  T *states, *corrections;
  const DeltaScanCut& cut;
  int first_value;

  __device__ __forceinline__ Panels<T> state(int64_t row) const {
    return {states + row * cut.state_numbers(kKeys) + int64_t{1} * first_value * kKeys, 64};
  }
  __device__ __forceinline__ void send_corrections(int64_t row, const Panels<T>& panels) const {
    send_panels<1>(correction(row), panels);
  }
  // By the group that moves data: a desk's state, which is published. Whoever sends the desk's tokens next waits for both.
  __device__ __forceinline__ void send_state(int64_t row, const Panels<T>& panels) const {
    if constexpr (!kHasBulkCopies)
      send_panels<kKeys / 64>(state(row).data, panels);
    else if (threadIdx.x % kGroup == 32)  // of another warp than the one that fetches
      send_bulk(state(row).data, panels.data, 64 * kKeys * sizeof(T));
  }
  template <class Desk>
  __device__ __forceinline__ void send(int64_t row, const Desk& desk) const {
    send_state(row, desk.state);
    if constexpr (!kHasBulkCopies) {
      send_corrections(row, desk.tokens);
    } else if (threadIdx.x % kGroup == 32) {
      send_bulk(correction(row), desk.tokens.data, 64 * 64 * sizeof(T));
      wait_sent();
    }
  }

 private:
  __device__ __forceinline__ T* correction(int64_t row) const {
    return corrections + row * cut.correction_numbers(64) + int64_t{1} * first_value * 64;
  }
};

// work(at) for all that a block works on.
template <int kKeys, class Args, class Work>
__device__ __forceinline__ void for_each_scan_item(const Args& args, const Work& work) {
  for (int64_t item = blockIdx.x; item < args.cut.items; item += gridDim.x) {
    const DeltaScanItem<64> at(item, args.cut, args.sequences, args.segments, args.in.value_heads,
                               args.in.V, kKeys);
    if (at.exists) work(at);
  }
}

// S^T of 64 columns of V, as a group of a forward scan carries it from where an item's walk starts to where it ends. kStops: and
// leaves it at boundaries on the way.
template <typename T, int kKeys, bool kStops>
struct GroupState {
  Sums<kKeys / 8> sums;
  FragmentA<T> rounded[kKeys / 16];

  template <class Item>
  __device__ __forceinline__ GroupState(const DeltaScanArgs<T>& args, const Item& at,
                                        int first_column)
      : stops_(args.segments), value_(first_column + threadIdx.x % kGroup / 32 * 16) {
    load_start(sums, args.segments, at, args.initial, at.first, at.segment, value_, 0, args.in.K);
    round_sums(rounded, sums);
  }
  template <class Item>
  __device__ __forceinline__ void stop_at(int64_t chunk, const DeltaScanArgs<T>& args,
                                          const Item& at) {
    if (kStops && stops_.is_at(chunk))
      store_state(sums, stops_.pass(), at.sequence, at.head, value_, 0, args.in.V, args.in.K);
  }
  template <class Item>
  __device__ __forceinline__ void end(const DeltaScanArgs<T>& args, const Item& at) const {
    store_end(sums, args.segments, at, args.final_state, at.last, at.segment + 1, value_, 0,
              args.in.K);
  }

 private:
  DeltaStops<64> stops_;
  int value_;
};

// For BFloat16 and Float16, 64 and 128 keys.
template <typename T>
void launch_delta_group_scan(const DeltaScanArgs<T>& args, bool outputs, int64_t padded_keys,
                             const LaunchShape& shape, GpuStream stream);
// Outputs, for blocks of 128 columns of V.
template <typename T>
void launch_delta_group_wide_scan(const DeltaScanArgs<T>& args, int64_t padded_keys,
                                  const LaunchShape& shape, GpuStream stream);
template <typename T>
void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<T>& args, int64_t padded_keys,
                                     const LaunchShape& shape, GpuStream stream);

}  // namespace linescan
