// gated_delta_rule, the scan of group_scan.cu with outputs where heads are many: it makes the records of its chunks itself
// (gpu_record.cuh), so that q and k are read once. A block has 128 columns of V. Two warp groups, the chains, carry S^T of 64
// columns each and compute their outputs; they share k, q, A and P. While they are at chunk r - 1, two others are at the record of
// chunk r:
//
//   preparer    gates, decays and P of r        outputs of r - 1 leave, tokens of r + 1 come
//   inverter    L, once there are decays, A, and the record's rows
//
// Outputs stand where v was, and leave from there. To these two an item's end is no end: the chunk behind its last one is the next
// item's first, so that chains find its record when they come to it. What a backward pass wants of some sequences, states and
// corrections, chains send by themselves.
//
// Numerics:  as group_scan.cu and chunk_records.cu.
// Reference: reference.cpp beside this file; bounds in tests/ops/gated_delta_rule_gpu_test.cpp.

#include "linescan/ops/gated_delta_rule/gpu_record_inverse.cuh"
#include "linescan/ops/gated_delta_rule/gpu_recording_memory.cuh"

namespace linescan {
namespace {

using enum DepthIs;

// The block's groups, behind its chains.
constexpr int kInverter = kRecordingChains, kPreparer = kRecordingChains + 1;

// The 16 x 16 blocks of a warp in the rows of a group's product: from the third one to the first those in front of the diagonal, then
// the one on it, of which there is one piece of code.
struct RowOfBlocks {
  static constexpr int kMost = 4, kDiagonal = 3;
  int warp, lane;
  float passed = 1;

  __device__ __forceinline__ bool has(int n) const { return is_near(n) || column(n) < warp; }
  __device__ __forceinline__ int row(int) const { return warp; }
  __device__ __forceinline__ int column(int n) const { return is_near(n) ? warp : 2 - n; }
  __device__ __forceinline__ bool begins_row(int n) const { return n == 0; }
  __device__ __forceinline__ bool is_near(int n) const { return n == kDiagonal; }
  template <class Decays>
  __device__ __forceinline__ float between(const Decays& decays, int n) {
    const float result = passed;
    if (column(n) > 0) passed *= decays.block(column(n));
    return result;
  }
};
// Number i of tile `half` of block n's sums.
class SumsOfBlocks {
 public:
  __device__ __forceinline__ SumsOfBlocks(const Sums<8>& sums, int warp) : sums_(sums) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float low = warp % 2 == 0 ? sums.tiles[half][i] : sums.tiles[2 + half][i];
        const float high = warp % 2 == 0 ? sums.tiles[4 + half][i] : sums.tiles[6 + half][i];
        diagonal_[half][i] = warp < 2 ? low : high;
      }
  }
  __device__ __forceinline__ const float* of(int n, int half, int i) const {
    return n == RowOfBlocks::kDiagonal ? &diagonal_[half][i] : &sums_.tiles[2 * (2 - n) + half][i];
  }

 private:
  const Sums<8>& sums_;
  float diagonal_[2][4];
};

// kKeeps: and what a backward pass wants, states at boundaries on the way, or of some sequences states and corrections of all chunks.
template <typename T, int kKeys, bool kKeeps>
struct GroupRecordingScan {
  using Tiles = RecordingTiles<T, kKeys>;
  using Memory = RecordingMemory<T, Tiles>;
  static constexpr int kChunk = Tiles::kChunk, kDepth = kChunk / 16, kStages = Tiles::kStages;
  using Item = DeltaScanItem<kChunk>;
  // The preparer's. Read anew wherever something depends on it: the compiler would keep what follows from it, in registers that
  // there are none of.
  static __device__ __forceinline__ int own_thread() {
    return static_cast<int>(read_thread() % kGroup);
  }
  struct Senders : GroupSenders<kGroup, 32> {
    static __device__ __forceinline__ int thread() { return own_thread(); }
    static __device__ __forceinline__ bool asks() { return thread() == Senders::kAsking; }
  };
  // Of a thread; all four groups have those of a multiprocessor.
  static constexpr int kChainRegisters = kKeys == 64 ? 160 : 192;
  static constexpr int kRecordRegisters = 256 - kChainRegisters;

  // Barriers of the block, two of a kind in turn: chains are through with a chunk, for the preparer and for the inverter; a
  // record is there; what its two parts need is there; what they needed of the chunk before has been read. Whoever writes waits
  // for those that read to say so themselves, though others may know already: racecheck looks for that.
  static constexpr int kThrough = 1, kFree = kThrough + 2, kRecorded = kFree + 2;
  static constexpr int kPrepared = kRecorded + 2, kRead = kPrepared + 2, kOfInverter = kRead + 2;
  static constexpr int kOfPreparer = kOfInverter + 1, kFull = kOfPreparer + 1;
  static constexpr int kThroughThreads = 3 * kGroup, kRecordedThreads = 4 * kGroup;
  using TokenArrivals =
      Arrivals<kGroup, 3 * kGroup, kStages, kFull>;  // the preparer does not count twice
  static_assert(kFull + kStages <= 16);

  const DeltaScanArgs<T>& args;
  const GroupScanBoxes& boxes;
  const GroupLanes lanes = {};

  // Places of ways, in turn.
  static __device__ __forceinline__ int behind(int place) { return (place + 1) % Memory::kWays; }
  static __device__ __forceinline__ int before(int place) {
    return (place + Memory::kWays - 1) % Memory::kWays;
  }
  static __device__ __forceinline__ int next_of(int stage) {
    return stage + 1 == kStages ? 0 : stage + 1;
  }

  // ---- The preparer ----

  // Chunk after chunk, whichever item they belong to: the next item's first tokens come while the last chunk of the one before it is
  // under way.
  __device__ __forceinline__ void prepare(TokenArrivals& arrivals) const {
    const auto meet = [] { barrier_wait(kOfPreparer, kGroup); };
    Memory& memory = Memory::get();
    const int warp = uniform(own_thread() / 32);
    RecordGates<T, kChunk> gates(args.in);
    const int step = args.sequences.reverse ? -1 : 1;
    int stage = 0, done = 0, place = 0;
    int number = 0, chunks = memory.ways(place).chunks;  // of the item
    // The chunk before.
    const auto send_before = [&] {
      const RecordingWays<T>& ways = memory.ways(number > 0 ? place : before(place));
      send(ways, stage > 0 ? stage - 1 : kStages - 1, (done + 1) % 2,
           (number > 0 ? number : ways.chunks) - 1);
    };
    if (chunks == 0) return;
    gates.ask(memory.ways(place).gates, 0, memory.ways(place).tokens_of(0), step, own_thread());
    fetch(memory.ways(place), stage, number, arrivals);
#pragma unroll 1
    for (; chunks > 0; ++done) {
      const int which = done % 2;
      const Tiles tile(stage, which);
      auto& turn = memory.turns[which];
      // Addresses are found anew for every chunk: there are no registers to keep them.
      const int thread = own_thread();
      if constexpr (kHasBulkCopies)
        arrivals.wait(stage);
      else
        meet();  // its own copies have arrived
      Sums<kChunk / 8> qk;
      group_begin(qk);
      group_multiply<kColumns, kColumns, kKeys>(qk, GroupOperand<T>{tile.q},
                                                GroupOperand<T>{tile.k}, false);
      group_commit();
      gates.keep(turn.gates, memory.ways(place).source.head,
                 number + 1 < chunks ? kChunk : memory.ways(place).tokens_of(number), thread);
      turn.decays.fill(turn.gates, thread);
      norm_factors<T, kKeys>(tile.k, args.in.norm, turn.factor_k, thread);
      norm_factors<T, kKeys>(tile.q, args.in.norm, turn.factor_q, thread);
      if (thread == Senders::kAsking) wait_sent();
      barrier_arrive(kPrepared + which, 2 * kGroup);
      barrier_wait(kRead + which, 2 * kGroup);  // and all of the group have come so far
      // Into the stage whose outputs have left.
      const bool ends = number + 1 == chunks;
      const RecordingWays<T>& next = memory.ways(ends ? behind(place) : place);
      if (!ends || next.chunks > 0) {
        const int next_number = ends ? 0 : number + 1;
        fetch(next, next_of(stage), next_number, arrivals);
        gates.ask(next.gates, kChunk * next_number,
                  number + 2 < chunks ? kChunk : next.tokens_of(next_number), step, own_thread());
      }
      group_wait<0>(qk);
      const auto& made = memory.turns[in_register(which)];  // the same, found anew
      const SumsOfBlocks sums(qk, warp);
      float of_p[2];
      for_each_pair(
          RowOfBlocks{warp, own_thread() % 32}, made.decays, made.factor_k,
          [&](int r, int i) { of_p[r] = args.in.scale * made.factor_q[i]; },
          [&](int n, int half, int r, int i, int j, float row, float2 column) {
            store_p(tile.P, i, j, of_p[r] * row, column, sums.of(n, half, 2 * r));
          });
      group_publish();
      barrier_arrive(kRecorded + which, kRecordedThreads);
      if (done > 0) send_before();
      stage = next_of(stage);
      if (++number < chunks) continue;
      place = behind(place);
      number = 0;
      chunks = memory.ways(place).chunks;
    }
    send_before();
    wait_senders<Senders>();
  }
  // What one thread does for boxes is short, and not GroupScanSource's: the rest of the group waits for it.
  __device__ __forceinline__ void fetch(const RecordingWays<T>& ways, int stage, int number,
                                        const TokenArrivals& arrivals) const {
    constexpr int kKeyPanels = kKeys / 64, kValuePanels = Tiles::kValues / 64;
    const Tiles to(stage, 0);
    if (ways.boxed) {
      if (own_thread() == 0) {
        const unsigned barrier = arrivals.barrier(stage);
        arrivals.expect(0, stage, (2 * kKeyPanels + kValuePanels) * kPanelBytes);
        BoxPlace place = ways.first;
        place.token += kChunk * number;
        for_each_panel<kValuePanels>(to.v, place, [&](T* panel, const BoxPlace& at) {
          fetch_box(boxes.v, at, panel, barrier);
        });
        place.number = 0;
        place.head = ways.key_head;
        for_each_panel<kKeyPanels>(to.k, place, [&](T* panel, const BoxPlace& at) {
          fetch_box(boxes.k, at, panel, barrier);
        });
        for_each_panel<kKeyPanels>(to.q, place, [&](T* panel, const BoxPlace& at) {
          fetch_box(boxes.q, at, panel, barrier);
        });
      }
    } else {
      const GroupScanSource<T>& from = ways.source;
      const typename GroupScanSource<T>::template Copies<TokenArrivals> copies(
          from, number, boxes, arrivals, stage, own_thread());
      copies.expect(0, 2 * kKeyPanels + kValuePanels);
      copies.template keys<kKeys>(to.k, boxes.k, from.k, from.k_step);
      copies.template keys<kKeys>(to.q, boxes.q, from.q, from.q_step);
      copies.template values<Tiles::kValues>(to.v);
    }
    arrivals.arrive(stage);
  }
  // A chunk's outputs, once both chains are through with it; its record, if a backward pass wants it.
  __device__ __forceinline__ void send(const RecordingWays<T>& ways, int stage, int which,
                                       int number) const {
    const Tiles from(stage, which);
    barrier_wait(kThrough + which, kThroughThreads);
    if (args.records && ways.first.number == 0) {
      constexpr int kBytes = Tiles::kRecordBytes;
      const int64_t row = ways.first_row + int64_t{1} * number * ways.row_step;
      auto* const to = reinterpret_cast<std::byte*>(delta_record<T>(args.records, row, kChunk).A);
      if constexpr (kHasBulkCopies) {
        if (Senders::asks()) send_bulk(to, from.A.data, kBytes);
      } else {
        for (int i = Senders::thread(); i < kBytes / 16; i += kGroup)
          reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from.A.data)[i];
      }
    }
    if (!ways.boxed)
      return ways.outputs.template send<Senders, Tiles::kValues>(number, from.v, ways.source,
                                                                 boxes);
    if (!Senders::asks()) return;
    BoxPlace place = ways.first;
    place.token += kChunk * number;
    for_each_panel<Tiles::kValues / 64>(
        from.v, place, [&](T* panel, const BoxPlace& at) { store_box(boxes.o, at, panel); });
  }

  static constexpr int kPanelBytes = kChunk * 64 * sizeof(T);
  template <int kPanels, class Move>
  static __device__ __forceinline__ void for_each_panel(const Panels<T>& panels, BoxPlace place,
                                                        const Move& move) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel, place.number += 64)
      move(panels.data + panel * kChunk * 64, place);
  }

  // ---- The inverter ----

  // The next item from a number on that has chunks; no chunks: there is none.
  __device__ __forceinline__ void find_item(RecordingWays<T>& ways, int64_t item) const {
    for (; item < args.cut.items; item += gridDim.x) {
      const Item at(item, args.cut, args.sequences, args.segments, args.in.value_heads, args.in.V,
                    kKeys);
      if (!at.exists || at.chunks == 0) continue;
      ways = RecordingWays<T>(args, boxes, at, item + gridDim.x);
      return;
    }
    ways.chunks = 0;
  }
  // Finds the items, too, one ahead of the chunk that it is at. Returns how many chunks there were.
  __device__ __forceinline__ int invert(TokenArrivals& arrivals) const {
    constexpr int kNumberPieces = std::is_same_v<T, BFloat16> ? 1 : 2;
    const auto meet = [] { barrier_wait(kOfInverter, kGroup); };
    Memory& memory = Memory::get();
    const int warp = uniform(static_cast<int>(threadIdx.x) % kGroup / 32);
    int stage = 0, done = 0, place = 0;
    int number = 0, chunks = memory.ways(place).chunks;  // of the item
#pragma unroll 1
    for (; chunks > 0; ++done) {
      if (number == 0 && threadIdx.x % kGroup == 0) [[unlikely]]
        find_item(memory.ways(behind(place)), memory.ways(place).next_item);
      const int which = done % 2;
      const Tiles tile(stage, which);
      const auto& turn = memory.turns[which];
      barrier_arrive(kRead + which, 2 * kGroup);
      arrivals.wait(stage);
      Sums<kChunk / 8> kk;
      group_begin(kk);
      group_multiply<kColumns, kColumns, kKeys>(kk, GroupOperand<T>{tile.k},
                                                GroupOperand<T>{tile.k}, false);
      group_commit();
      barrier_wait(kPrepared + which, 2 * kGroup);  // and nobody of the group reads L any more
      group_wait<0>(kk);
      const int lane = in_register(static_cast<int>(threadIdx.x) % 32);
      const SumsOfBlocks sums(kk, warp);
      float of_l[2];
      for_each_pair(
          RowOfBlocks{warp, lane}, turn.decays, turn.factor_k,
          [&](int r, int i) { of_l[r] = turn.gates[kChunk + i] * turn.factor_k[i]; },
          [&](int n, int half, int r, int i, int j, float row, float2 column) {
            store_l<Memory::kStride>(memory.L, i, j, of_l[r] * row, column,
                                     sums.of(n, half, 2 * r));
          });
      if (done >= 2) barrier_wait(kFree + which, kThroughThreads);
      __syncwarp();  // a warp's own block
      invert_block<Memory::kStride>(memory.L, tile.A, warp, in_register(lane));
      meet();
      solve_below<kChunk, Memory::kStride, kNumberPieces>(memory.L, tile.A, warp);
      if (warp >= 2)  // has less to solve, or nothing
        store_rows<T, kChunk>({tile.A.data, tile.P.data, tile.rows}, 32 * (warp - 2) + lane,
                              number + 1 < chunks ? kChunk : memory.ways(place).tokens_of(number),
                              args.in.scale, turn.gates, turn.factor_q, turn.factor_k, turn.decays);
      group_publish();
      barrier_arrive(kRecorded + which, kRecordedThreads);
      stage = next_of(stage);
      if (++number < chunks) continue;
      number = 0;
      place = behind(place);
      chunks = memory.ways(place).chunks;
    }
    return done;
  }
  // No barrier is left half met.
  __device__ __forceinline__ void end(int done) const {
    for (int number = max(0, done - 2); number < done; ++number)
      barrier_wait(kFree + number % 2, kThroughThreads);
  }

  // ---- The chains, which carry S^T ----

  // No more sums at once than the registers have room for: outputs come behind the state.
  __device__ __forceinline__ void carry(const Item& at, TokenArrivals& arrivals, int& done,
                                        int& stage, int chain) const {
    GroupState<T, kKeys, kKeeps> state(args, at, at.first_column + 64 * chain);
    const RecordingTray<T, kKeys> tray(Memory::get().trays[chain], args,
                                       at.first_column + 64 * chain);
    const bool keeps =
        at.sequence < args.kept_sequences && at.first_column + 64 * chain < args.cut.padded_values;
#pragma unroll 1
    for (int number = 0; number < static_cast<int>(at.chunks); ++number, ++done) {
      state.stop_at(number, args, at);
      const int which = done % 2;
      const Tiles tile(stage, which);
      const Panels<T> own = {tile.v.data + chain * kChunk * 64, kChunk};
      arrivals.wait(stage);
      Sums<kChunk / 8> sums;
      group_begin(sums);
      group_multiply<kColumns>(sums, state.rounded, GroupOperand<T>{tile.k}, false);
      group_commit();
      FragmentA<T> v[kDepth], rounded[kDepth];
      lanes.get_columns(v, own);
      if (kKeeps && keeps) [[unlikely]]
        tray.send_state(at.row(number), 0, state.rounded);
      barrier_wait(kRecorded + which, kRecordedThreads);
      const TokenFactors<kDepth> beta(tile, kBeta);
      group_wait<0>(sums);
      round_scaled(rounded, sums, correction_factors(beta, TokenFactors<kDepth>(tile, kReadK)),
                   scaled_tokens(v, beta));
      // u^T
      group_begin(sums);
      group_multiply<kColumns>(sums, rounded, GroupOperand<T>{tile.A}, false);
      group_commit();
      state.sums.scale(tile.rows[kDecay * kChunk]);
      if (kKeeps && kKeys > 64 && keeps) [[unlikely]]
        tray.send_state(at.row(number), 1, state.rounded);
      FragmentA<T> u[kDepth];
      const TokenFactors<kDepth> write(tile, kWrite);
      group_wait<0>(sums);
      round_scaled(rounded, sums, write);
      round_sums(u, sums);
      group_begin(state.sums);
      group_multiply<kRows>(state.sums, rounded, GroupOperand<T>{tile.k});
      group_commit();
      // o^T = (read_q o Q S)^T + (P u)^T
      group_begin(sums);
      group_multiply<kColumns>(sums, state.rounded, GroupOperand<T>{tile.q}, false);
      group_commit();
      if (kKeeps && keeps) [[unlikely]]
        tray.send_corrections(at.row(number), u);
      group_wait<0>(sums, state.sums);
      scale_tokens(sums, TokenFactors<kDepth>(tile, kReadQ));
      group_begin(sums);
      group_multiply<kColumns>(sums, u, GroupOperand<T>{tile.P});
      group_commit();
      round_sums(state.rounded, state.sums);
      group_wait<0>(sums);
      round_sums(u, sums);
      lanes.put_columns(own, u);  // a warp's own columns: nobody else reads v there
      group_publish();
      barrier_arrive(kFree + which, kThroughThreads);
      barrier_arrive(kThrough + which, kThroughThreads);
      stage = next_of(stage);
    }
    if (kKeeps && keeps) tray.close();
    state.end(args, at);
  }
};

template <typename T, int kKeys, bool kKeeps>
__global__ void __launch_bounds__(DeltaLayout::kRecordingThreads, 1)
    group_recording_scan_kernel(DeltaScanArgs<T> args,
                                const __grid_constant__ GroupScanBoxes boxes) {
  using Scan = GroupRecordingScan<T, kKeys, kKeeps>;
  using Item = typename Scan::Item;
  using Tiles = typename Scan::Tiles;
  static_assert(Tiles::kBytes == Tiles::kStages * Tiles::kStageBytes + 2 * Tiles::kRecordBytes +
                                     sizeof(typename Scan::Memory));
  const Scan scan = {args, boxes};
  typename Scan::TokenArrivals arrivals(Scan::Memory::get().arrivals);
  if (threadIdx.x == 0) arrivals.begin();
  if (threadIdx.x == kInverter * kGroup) scan.find_item(Scan::Memory::get().ways(0), blockIdx.x);
  // A and P are never written above their diagonals.
  for (int64_t i = threadIdx.x; i < 2 * Tiles::kRecordBytes / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(Tiles::records())[i] = uint4{};
  group_publish();
  __syncthreads();
  // The same in a warp; the shuffle says so to the compiler.
  const int group = uniform(static_cast<int>(threadIdx.x) / kGroup);
  if (group == kPreparer) {
    group_gives_registers<Scan::kRecordRegisters>();
    scan.prepare(arrivals);
  } else if (group == kInverter) {
    group_gives_registers<Scan::kRecordRegisters>();
    scan.end(scan.invert(arrivals));
  } else {
    group_takes_registers<Scan::kChainRegisters>();
    int done = 0, stage = 0;
    for_each_scan_item<kKeys>(
        args, [&](const Item& at) { scan.carry(at, arrivals, done, stage, group); });
  }
}

}  // namespace

template <typename T>
void launch_delta_group_recording_scan(const DeltaScanArgs<T>& args, int64_t padded_keys,
                                       const LaunchShape& shape, GpuStream stream) {
  const auto kernel_of = [&]<int kKeys>() {
    return args.segments.stop_tokens > 0 || args.kept_sequences > 0
               ? group_recording_scan_kernel<T, kKeys, true>
               : group_recording_scan_kernel<T, kKeys, false>;
  };
  launch("gated_delta_rule, records and scan",
         padded_keys == 64 ? kernel_of.template operator()<64>()
                           : kernel_of.template operator()<128>(),
         shape, stream, args, group_scan_boxes(args.in, args.sequences, args.in.v, args.o));
}
template void launch_delta_group_recording_scan(const DeltaScanArgs<BFloat16>&, int64_t,
                                                const LaunchShape&, GpuStream);
template void launch_delta_group_recording_scan(const DeltaScanArgs<Float16>&, int64_t,
                                                const LaunchShape&, GpuStream);

}  // namespace linescan
