// What the scans of warp groups share: who computes and who moves data, what stands in shared memory, and how results
// leave.
//
// A block carries S^T of 64 columns of V, [64, K], in the registers of one warp group, 16 columns a warp. What that group
// puts on a desk in shared memory, states and corrections, the last group of the block stores, who also loads, some chunks
// ahead; in a forward pass a group between them makes outputs of it first. (Where heads are many a block has two such groups
// and 128 columns, and makes records: group_recording_scan.cu. With more keys there are always two: gpu_group_deep.cuh.)
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_group_operands.cuh"
#include "linescan/ops/gated_delta_rule/gpu_scan.cuh"

namespace linescan {

inline constexpr int kGroup = DeltaLayout::kGroupScanThreads / 2;

// The rows of a chunk's record in shared memory.
struct GroupScanRows {
  float* rows;

  // Of the two neighbouring tokens that stand at fragment_k(q, 2 half) of an operand of depth 16 t.
  __device__ __forceinline__ float2 row(DeltaRow which, int t, int half) const {
    return *reinterpret_cast<const float2*>(
        &rows[which * 64 + 16 * t + 8 * half + threadIdx.x % 4 * 2]);
  }
};

// A chunk in shared memory. kOutputs: with q and P.
template <typename T, int kKeys, bool kOutputs>
struct GroupScanTiles : DeltaSizes<T, kKeys>, GroupScanRows {
  using Sizes = DeltaSizes<T, kKeys>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr bool kWithQueries = kOutputs;
  static constexpr int kValues = 64;
  static constexpr int64_t kStageBytes = kLayout.group_scan_stage_bytes(kOutputs);
  static_assert(kChunk == 64);

  Panels<T> k, q, A, P, v;

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

  // Starts the copies of a chunk, by the group that moves data: tokens in boxes where there are such, elsewhere pack by pack.
  template <class Tiles, class Arrivals>
  __device__ __forceinline__ void fetch(const Tiles& to, int64_t number,
                                        const GroupScanBoxes& boxes, const Arrivals& arrivals,
                                        int stage) const {
    constexpr int kPanels = Tiles::kLayout.keys / 64, kValuePanels = Tiles::kValues / 64;
    constexpr int kOfEach = Tiles::kWithQueries ? 2 : 1;  // k and q, A and P
    const Copies<Arrivals> copies(*this, number, boxes, arrivals, stage);
    copies.expect(kOfEach * kSquareBytes, kOfEach * kPanels + (v ? kValuePanels : 0));
    copies.record(to.A.data, 0, kSquareBytes);
    if constexpr (Tiles::kWithQueries) copies.record(to.P.data, kSquareBytes, kSquareBytes);
    copies.rows(to.rows);
    copies.template values<Tiles::kValues>(to.v);
    copies.template keys<Tiles::kLayout.keys>(to.k, boxes.k, k, k_step);
    if constexpr (Tiles::kWithQueries)
      copies.template keys<Tiles::kLayout.keys>(to.q, boxes.q, q, q_step);
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

  static constexpr int kSquareBytes = 64 * 64 * sizeof(T), kRowsBytes = kDeltaRecordRows * 64 * 4;

  // The copies of a chunk, or of a part of it, that arrive together at a place; by so many threads of the group that moves data.
  // kBoxes: all of the launch's tokens come in boxes.
  template <class Arrivals, int kTeam = kGroup, bool kBoxes = false>
  struct Copies {
    const GroupScanSource& from;
    const GroupScanBoxes& boxes;
    const Arrivals& arrivals;
    int64_t number;
    int arrival, thread;  // of the group
    bool boxed;

    __device__ __forceinline__ Copies(const GroupScanSource& from, int64_t number,
                                      const GroupScanBoxes& boxes, const Arrivals& arrivals,
                                      int arrival, int thread = threadIdx.x % kGroup)
        : from(from),
          boxes(boxes),
          arrivals(arrivals),
          number(number),
          arrival(arrival),
          thread(thread),
          boxed(kBoxes || from.are_boxes<kChunk>(number, boxes)) {}

    // Before all others: so many bytes of the record, and panels of tokens.
    __device__ __forceinline__ void expect(int bytes, int panels) const {
      arrivals.expect(thread, arrival, bytes + (boxed ? panels * kSquareBytes : 0));
    }
    // Bytes of the record, A, P and the rows, behind so many others.
    __device__ __forceinline__ void record(void* to, int first, int bytes) const {
      arrivals.copy(thread, arrival, to, record() + first, bytes);
    }
    // Its rows pack by pack.
    __device__ __forceinline__ void rows(float* to) const {
      static_assert(kRowsBytes == 16 * kTeam);
      copy_async<16>(to + 4 * thread, record() + 2 * kSquareBytes + 16 * thread);
    }
    template <int kColumns>
    __device__ __forceinline__ void values(const Panels<T>& to) const {
      tokens<kColumns>(to, boxes.v, from.v, from.v_step, from.head, from.first_column, from.columns,
                       from.v_vectors);
    }
    // k or q, whose first token's row is `rows`.
    template <int kColumns>
    __device__ __forceinline__ void keys(const Panels<T>& to, const RowBoxes& of, const T* rows,
                                         int64_t step) const {
      tokens<kColumns>(to, of, rows, step, from.key_head, 0, from.keys, from.vectors);
    }

    // Into the second-level cache only, by the thread that asks for boxes: bytes of the record, values, k or q.
    __device__ __forceinline__ void record_ahead(int first, int bytes) const {
      if (boxed && thread == 0) prefetch_bulk(record() + first, bytes);
    }
    template <int kColumns>
    __device__ __forceinline__ void values_ahead() const {
      tokens_ahead<kColumns>(boxes.v, from.head, from.first_column);
    }
    template <int kColumns>
    __device__ __forceinline__ void keys_ahead(const RowBoxes& of) const {
      tokens_ahead<kColumns>(of, from.key_head, 0);
    }

   private:
    static constexpr int kChunk = 64;

    template <int kColumns>
    __device__ __forceinline__ void tokens_ahead(const RowBoxes& of, int head, int first) const {
      if (!boxed || thread != 0) return;
      BoxPlace at = from.place<kChunk>(number);
      at.head = head;
      at.number = first;
      for (int panel = 0; panel < kColumns / 64; ++panel, at.number += 64) prefetch_box(of, at);
    }
    __device__ __forceinline__ const std::byte* record() const {
      return from.records + number * from.record_step;
    }
    // `rows`: null: zeros.
    template <int kColumns>
    __device__ __forceinline__ void tokens(const Panels<T>& to, const RowBoxes& of, const T* rows,
                                           int64_t step, int head, int first, int columns,
                                           bool vectors) const {
      if (kBoxes || (boxed && rows)) {
        if (thread != 0) return;
        const unsigned barrier = arrivals.barrier(arrival);
        BoxPlace at = from.place<kChunk>(number);
        at.head = head;
        at.number = first;
        for (int panel = 0; panel < kColumns / 64; ++panel, at.number += 64)
          fetch_box(of, at, to.data + panel * kChunk * 64, barrier);
        return;
      }
      const int64_t token = number * kChunk;
      const int valid = rows ? static_cast<int>(min(int64_t{kChunk}, from.walk.length - token)) : 0;
      load_panels<kColumns, kTeam>(thread, to, rows + (rows ? token * step : 0), step, valid,
                                   columns, vectors);
    }
  };
};

// What a chunk leaves, behind the stages: S in front of it or the gradient of S behind it, [64, K]; u, later outputs, or gX,
// [tokens, 64], or u^T where nobody makes outputs. Two chunks in turn.
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
  // The same where there are no desks.
  static __device__ __forceinline__ uint64_t* behind_stages(int stages) {
    return reinterpret_cast<uint64_t*>(desks(stages));
  }

 private:
  static __device__ __forceinline__ T* desks(int stages) {
    return reinterpret_cast<T*>(group_memory() + stages * Tiles::kStageBytes);
  }
};

// The turns of the block's groups for one item, whose chunks are counted from 0 in the order of the walk. kUsers groups
// use a stage: the one that carries states, and perhaps one that makes outputs of what that one puts on the desk.
template <int kUsers>
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
    barrier_arrive(kSent + i % 2, 2 * kGroup);
  }
};

// Who stores what a chunk leaves: neighbouring threads of a block, of which one asks the copy engine.
template <int kOf, int kAsks>
struct GroupSenders {
  static constexpr int kThreads = kOf, kAsking = kAsks;
  static __device__ __forceinline__ int thread() {
    return static_cast<int>(threadIdx.x) % kThreads;
  }
  static __device__ __forceinline__ bool asks() { return thread() == kAsks; }
};
// The group that moves data; another warp than the one that fetches asks.
using MovingGroup = GroupSenders<kGroup, 32>;

// to [64 rows, step apart] <- panels [64, kColumns]: whole rows up to `rows`, of them `columns`.
template <class Senders, int kColumns, typename T>
__device__ __forceinline__ void send_rows(T* to, int64_t step, int rows, int columns, bool vectors,
                                          const Panels<T>& panels) {
  constexpr int kPacks = kColumns / 8,
                kPass = Senders::kThreads >= 8 * kPacks ? Senders::kThreads / kPacks : 8;
  constexpr int kPasses = 64 / kPass, kRounds = kPass * kPacks / Senders::kThreads;
  static_assert(kRounds == 1 || kPass == 8);
  const int thread = Senders::thread();
  if (vectors) {
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      const int pack = thread + round * Senders::kThreads;
      const int first = pack / kPacks, column = pack % kPacks * 8;
      const auto* const from = reinterpret_cast<const uint4*>(panels.at(first, column));
      uint4 packs[kPasses];
#pragma unroll
      for (int i = 0; i < kPasses; ++i)
        packs[i] = from[i * kPass * 8];  // multiples of eight rows on
      const int valid = column < columns ? rows - first : 0;
      const int64_t pass_step = kPass * step;
      T* at = to + first * step + column;
#pragma unroll
      for (int i = 0; i < kPasses; ++i, at += pass_step)
        if (i * kPass < valid) *reinterpret_cast<uint4*>(at) = packs[i];
    }
    return;
  }
#pragma unroll 1
  for (int i = thread; i < 64 * kColumns; i += Senders::kThreads) {
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
  // Panels [64, kValues], which are published, from one of the block's columns on. kBoxes: as for Copies.
  template <class Senders, int kValues, bool kBoxes = false>
  __device__ __forceinline__ void send(int64_t number, const Panels<T>& panels,
                                       const GroupScanSource<T>& source,
                                       const GroupScanBoxes& boxes, int column = 0) const {
    constexpr int kChunk = 64;
    if (kBoxes || source.template are_boxes<kChunk>(number, boxes)) {
      if (!Senders::asks()) return;
      BoxPlace at = source.template place<kChunk>(number);
      at.number += column;
      for (int panel = 0; panel < kValues / 64; ++panel, at.number += 64)
        store_box(boxes.o, at, panels.data + panel * kChunk * 64);
    } else {
      const int64_t token = number * kChunk;
      send_rows<Senders, kValues>(
          first + token * step + column, step,
          static_cast<int>(min(int64_t{kChunk}, source.walk.length - token)), columns - column,
          vectors, panels);
    }
  }
};
// to <- panels [64, 64 kPanels] as they lie in shared memory.
template <class Senders, int kPanels, typename T>
__device__ __forceinline__ void send_panels(T* to, const Panels<T>& panels) {
  constexpr int kAtOnce = 8, kPasses = kPanels * 64 * 64 / 8 / Senders::kThreads;
  static_assert(kPasses % kAtOnce == 0 || kPasses < kAtOnce);
  const auto* from = reinterpret_cast<const uint4*>(panels.data) + Senders::thread();
  auto* at = reinterpret_cast<uint4*>(to) + Senders::thread();
#pragma unroll 1
  for (int pass = 0; pass < kPasses; pass += kAtOnce) {
    uint4 packs[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce && i < kPasses; ++i, from += Senders::kThreads) packs[i] = *from;
#pragma unroll
    for (int i = 0; i < kAtOnce && i < kPasses; ++i, at += Senders::kThreads) *at = packs[i];
  }
}

// What a block's 64 columns of V leave in the workspace for a chunk, as Panels: S^T or gS'^T [values, keys], and u^T [values,
// tokens] where there is room for it. As the registers hold them, so that a warp's rows are neighbours.
template <int kKeys, typename T>
struct GroupScanWorkspace {
  T *states, *corrections;
  const DeltaScanCut& cut;
  int first_value;

  __device__ __forceinline__ T* state(int64_t row) const {
    return states + row * cut.state_numbers(kKeys) + int64_t{1} * first_value * kKeys;
  }
  __device__ __forceinline__ T* correction(int64_t row) const {
    return corrections + row * cut.correction_step + int64_t{1} * first_value * 64;
  }
  // What is published.
  template <class Senders>
  __device__ __forceinline__ void send_state(int64_t row, const Panels<T>& panels) const {
    send<Senders, kKeys / 64>(state(row), panels);
  }
  template <class Senders>
  __device__ __forceinline__ void send_corrections(int64_t row, const Panels<T>& panels) const {
    send<Senders, 1>(correction(row), panels);
  }

 private:
  template <class Senders, int kPanels>
  static __device__ __forceinline__ void send(T* to, const Panels<T>& panels) {
    if constexpr (!kHasBulkCopies)
      send_panels<Senders, kPanels>(to, panels);
    else if (Senders::asks())
      send_bulk(to, panels.data, kPanels * 64 * 64 * sizeof(T));
  }
};
// What has been sent can be written again, when the senders have waited and met whoever writes.
template <class Senders>
__device__ __forceinline__ void wait_senders() {
  if (Senders::asks()) wait_sent();
}

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
// Outputs and, for a backward pass if there is room for them, records, states and corrections; for blocks of 128 columns of V.
template <typename T>
void launch_delta_group_recording_scan(const DeltaScanArgs<T>& args, int64_t padded_keys,
                                       const LaunchShape& shape, GpuStream stream);
template <typename T>
void launch_delta_group_reverse_scan(const DeltaReverseScanArgs<T>& args, int64_t padded_keys,
                                     const LaunchShape& shape, GpuStream stream);

}  // namespace linescan
