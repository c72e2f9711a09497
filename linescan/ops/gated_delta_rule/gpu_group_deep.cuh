// What the scans of warp groups with 129 to 256 keys share (group_deep_scan.cu, group_deep_reverse_scan.cu).
//
// A block has 128 columns of V. Two groups carry S^T of 64 columns each, [64, 256], 128 registers a thread. Rounded, as the
// left operand of the products with k and q, it does not fit beside that: it stands in shared memory, from where it is stored, too.
// While one group rounds what a product gave, the other's products run. The warps of a third one move data.
//
// There is no room for two chunks. What of one is wanted at different times has places of its own: k, P and the rows of the record,
// wanted from the first product to the last, two; v and A, and q, one, filled again while the rest of the chunk is worked on.
#pragma once

#include "linescan/ops/gated_delta_rule/gpu_group_scan.cuh"

namespace linescan {

inline constexpr int kDeepChains = 2, kDeepThreads = DeltaLayout::kDeepScanThreads;
static_assert(kDeepThreads == (kDeepChains + 1) * kGroup);
// Registers of the groups that carry states, and of the one that moves data: two warps load, and one sends what each group leaves.
inline constexpr int kDeepCarrierRegisters = 232, kDeepMoverRegisters = 40;

// S^T of 64 columns, keys in two halves.
struct DeepState {
  static constexpr int kHalf = DeltaLayout::kDeepKeys / 2;
  Sums<kHalf / 8> halves[2];

  __device__ __forceinline__ void scale(float factor) {
    halves[0].scale(factor);
    halves[1].scale(factor);
  }
};

template <typename T>
struct DeepRoundedHalf {
  FragmentA<T> keys[DeepState::kHalf / 16];

  __device__ __forceinline__ DeepRoundedHalf(const DeepState& state, int half) {
    round_sums(keys, state.halves[half]);
  }
};

// A chunk in shared memory, and what stands behind it. kQueries: with q and P.
template <typename T, bool kQueries>
struct DeepTiles : DeltaSizes<T, DeltaLayout::kDeepKeys, true>, GroupScanRows {
  using Sizes = DeltaSizes<T, DeltaLayout::kDeepKeys, true>;
  using Sizes::kChunk, Sizes::kLayout;
  static constexpr int kKeys = DeltaLayout::kDeepKeys;
  static constexpr int64_t kKeysBytes = kLayout.deep_keys_bytes(kQueries);
  // v, A and q.
  static constexpr int kNumbersOfOne =
      kChunk * (kDeepChains * 64 + kChunk + (kQueries ? kKeys : 0));

  Panels<T> k, P, v, A, q;
  T* behind;

  // Of chunks counted in the order of the walk.
  __device__ __forceinline__ explicit DeepTiles(unsigned turn) {
    unsigned char* const first = group_memory();
    T* next = reinterpret_cast<T*>(first + turn % 2 * kKeysBytes);
    const auto take = [&](int columns) {
      const Panels<T> panels = {next, kChunk};
      next += kChunk * columns;
      return panels;
    };
    k = take(kKeys);
    P = kQueries ? take(kChunk) : k;
    rows = reinterpret_cast<float*>(next);
    next = reinterpret_cast<T*>(first + 2 * kKeysBytes);
    v = take(kDeepChains * 64);
    A = take(kChunk);
    q = kQueries ? take(kKeys) : k;
    behind = next;
  }
};

// What a group that carries states leaves there: S^T in front of a chunk or its gradient behind one, [64, 256], which is also
// what it multiplies; and tokens, [64, 64], u^T where nobody makes outputs. A warp sends both to where they are wanted. The group puts once in front of a leg and once a
// chunk; tokens put with a state are those of the chunk before it.
template <typename T, bool kQueries>
class DeepDesk {
  using Tiles = DeepTiles<T, kQueries>;
  static constexpr int kNumbers = 64 * DeltaLayout::kDeepKeys + 64 * 64;
  static_assert(2 * Tiles::kKeysBytes +
                    (Tiles::kNumbersOfOne + kDeepChains * kNumbers) * int64_t{sizeof(T)} +
                    8 * (DeltaLayout::kDeepArrivals + 1) ==
                Tiles::kLayout.deep_scan_bytes(kQueries));

 public:
  using Senders = GroupSenders<32, 0>;
  using RoundedHalf = DeepRoundedHalf<T>;
  static constexpr int kFirstBarrier = 1, kBarriers = 3 * kDeepChains;
  Panels<T> state, tokens;

  __device__ __forceinline__ explicit DeepDesk(int chain)
      : state{DeepTiles<T, kQueries>(0).behind + chain * kNumbers, 64},
        tokens{state.data + 64 * DeltaLayout::kDeepKeys, 64},
        sent_(kFirstBarrier + 3 * chain) {}
  static __device__ __forceinline__ uint64_t* arrivals() {
    return reinterpret_cast<uint64_t*>(DeepTiles<T, kQueries>(0).behind + kDeepChains * kNumbers);
  }

  // ---- The group ----
  // Everybody has multiplied what is there, and it is sent.
  __device__ __forceinline__ void open() const { barrier_wait(sent_, kThreads); }
  // Half of a state, which may be rounded beforehand.
  __device__ __forceinline__ void put(const GroupLanes& lanes, int half,
                                      const RoundedHalf& rounded) const {
    lanes.put_rows(Panels<T>{state.data + half * 64 * DeepState::kHalf, 64}, rounded.keys);
  }
  __device__ __forceinline__ void put(const GroupLanes& lanes, const DeepState& of) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) put(lanes, half, RoundedHalf(of, half));
  }
  __device__ __forceinline__ void close() const {
    group_publish();
    barrier_arrive(put(), kThreads);
    meet();
  }
  __device__ __forceinline__ void meet() const { barrier_wait(sent_ + 2, kGroup); }

  // ---- The warp that sends: send_state(turn), send_tokens(turn) for turns 0 to `turns` - 1 of a leg ----
  template <class SendState, class SendTokens>
  __device__ __forceinline__ void send(int turns, const SendState& send_state,
                                       const SendTokens& send_tokens) const {
#pragma unroll 1
    for (int turn = 0; turn <= turns; ++turn) {
      barrier_arrive(sent_, kThreads);
      barrier_wait(put(), kThreads);
      if (turn < turns) send_state(turn);
      if (turn > 0) send_tokens(turn - 1);
      wait_senders<Senders>();
      __syncwarp();
    }
  }

 private:
  static constexpr int kThreads = kGroup + Senders::kThreads;
  int sent_;  // and two barriers behind it

  __device__ __forceinline__ int put() const { return sent_ + 1; }
};

// sums = S^T (k or q)^T
template <typename T, int kTiles>
__device__ __forceinline__ void multiply_deep(Sums<kTiles>& sums, const Panels<T>& state,
                                              const Panels<T>& keys) {
  using enum DepthIs;
  group_multiply<kColumns, kColumns, DeltaLayout::kDeepKeys>(sums, GroupOperand<T>{state},
                                                             GroupOperand<T>{keys}, /*add=*/false);
}
// A half of S^T += tokens (k or q)
template <typename T, int kDepth>
__device__ __forceinline__ void multiply_deep(DeepState& state, int half,
                                              const FragmentA<T> (&tokens)[kDepth],
                                              const Panels<T>& keys) {
  group_multiply<DepthIs::kRows>(state.halves[half], tokens,
                                 GroupOperand<T>{keys, 0, half * DeepState::kHalf});
}

// Whose turn it is with the places of a chunk's parts. Chunks are counted from the kernel's start to its end. kBoxes: all tokens of
// the launch come and go in boxes.
enum class DeepPart { kKeys, kValues, kQueries };

template <typename T, bool kQueries, bool kBoxes>
class DeepTurns {
  using Desk = DeepDesk<T, kQueries>;
  using Source = GroupScanSource<T>;

 public:
  static constexpr int kLoaders = kBoxes ? 32 : 64;  // threads

  __device__ __forceinline__ DeepTurns() : arrivals_(Desk::arrivals()) {}
  // By one thread; then the block meets.
  __device__ __forceinline__ void begin() const { arrivals_.begin(); }
  // Behind the arrivals: the block's number.
  __device__ __forceinline__ unsigned* drawn() const {
    return reinterpret_cast<unsigned*>(Desk::arrivals() + DeltaLayout::kDeepArrivals);
  }

  // The tiles of this turn's chunk.
  __device__ __forceinline__ DeepTiles<T, kQueries> tiles() const {
    return DeepTiles<T, kQueries>(turn_);
  }
  __device__ __forceinline__ void next() { ++turn_; }

  // ---- The threads that load ----
  __device__ __forceinline__ void load(const Source& source, int64_t number,
                                       const GroupScanBoxes& boxes) {
    constexpr int kKeys = DeltaLayout::kDeepKeys, kPanels = kKeys / 64;
    constexpr int kSquare = Source::kSquareBytes, kRows = Source::kRowsBytes;
    const DeepTiles<T, kQueries> to = tiles();
    const auto fill = [&](DeepPart part, int bytes, int panels, const auto& copy) {
      const int place = place_of(part, turn_);
      if (turn_ >= places(part)) wait_free(place);
      const typename Source::template Copies<Places, kLoaders, kBoxes> copies(source, number, boxes,
                                                                              arrivals_, place);
      copies.expect(bytes, panels);
      copy(copies);
      if constexpr (!kBoxes) arrivals_.arrive(place);
    };
    fill(DeepPart::kKeys, (kQueries ? kSquare : 0) + kRows, kPanels, [&](const auto& copies) {
      if constexpr (kQueries)  // the rows stand behind P, here and there
        copies.record(to.P.data, kSquare, kSquare + kRows);
      else
        copies.record(to.rows, 2 * kSquare, kRows);
      copies.template keys<kKeys>(to.k, boxes.k, source.k, source.k_step);
      // What the places of the other parts are not free for yet.
      copies.record_ahead(0, kSquare);
      if (source.v) copies.template values_ahead<kDeepChains * 64>();
      if constexpr (kQueries) copies.template keys_ahead<kKeys>(boxes.q);
    });
    fill(DeepPart::kValues, kSquare, source.v ? kDeepChains : 0, [&](const auto& copies) {
      copies.record(to.A.data, 0, kSquare);
      copies.template values<kDeepChains * 64>(to.v);
    });
    if constexpr (kQueries)
      fill(DeepPart::kQueries, 0, kPanels, [&](const auto& copies) {
        copies.template keys<kKeys>(to.q, boxes.q, source.q, source.q_step);
      });
    next();
  }
  // After all: no barrier is left half met.
  __device__ __forceinline__ void finish() const {
    for (const DeepPart part : {DeepPart::kKeys, DeepPart::kValues, DeepPart::kQueries})
      if (kQueries || part != DeepPart::kQueries)
        for (unsigned i = min(turn_, places(part)); i > 0; --i)
          wait_free(place_of(part, turn_ - i));
  }

  // ---- The groups that carry states ----
  __device__ __forceinline__ void wait(DeepPart part) { arrivals_.wait(place_of(part, turn_)); }
  // Nothing of it is wanted any more.
  __device__ __forceinline__ void used(DeepPart part) const {
    barrier_arrive(kFree + place_of(part, turn_), kUsers);
  }

 private:
  static constexpr int kPlaces = DeltaLayout::kDeepArrivals;
  static constexpr int kUsers = kDeepChains * kGroup + kLoaders;
  static constexpr int kFree = Desk::kFirstBarrier + Desk::kBarriers, kFull = kFree + kPlaces;
  static_assert(kFull + kPlaces <= 16);
  // Where one thread loads it asks for everything, and nobody else arrives.
  using Places = Arrivals<kBoxes ? 0 : kLoaders, kDeepChains * kGroup, kPlaces, kFull>;

  Places arrivals_;
  unsigned turn_ = 0;

  static __device__ __forceinline__ unsigned places(DeepPart part) {
    return part == DeepPart::kKeys ? 2 : 1;
  }
  static __device__ __forceinline__ int place_of(DeepPart part, unsigned turn) {
    return part == DeepPart::kKeys ? static_cast<int>(turn % 2) : static_cast<int>(part) + 1;
  }
  static __device__ __forceinline__ void wait_free(int place) {
    barrier_wait(kFree + place, kUsers);
  }
};

// Between the blocks that share a walk: the state, by a group that carries it, behind what it has put.
class DeepHandover {
 public:
  __device__ __forceinline__ DeepHandover(const DeltaSharedWalks& shared, unsigned block, int chain)
      : signal_(shared.signals + 1 + block * kDeepChains + chain),
        at_(shared.states + (int64_t{1} * block * kDeepChains + chain) * kPacks * kGroup +
            threadIdx.x % kGroup) {}

  template <class Desk>
  __device__ __forceinline__ void give(const DeepState& state, const Desk& desk) const {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      state.halves[half].put(at_ + half * (kPacks / 2) * kGroup, kGroup);
    desk.meet();
    if (threadIdx.x % kGroup == 0) raise_flag(signal_);
  }
  template <class Desk>
  __device__ __forceinline__ void take(DeepState& state, const Desk& desk) const {
    if (threadIdx.x % kGroup == 0) wait_flag(signal_);
    desk.meet();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      state.halves[half].get(at_ + half * (kPacks / 2) * kGroup, kGroup);
  }

 private:
  static constexpr int kPacks = DeltaLayout::kDeepKeys / 8;  // of a thread

  unsigned* signal_;
  float4* at_;
};

// A block's warps and what they do, leg after leg, in `turns` chunks: scan.load(at, leg, turns, place), .send(at, leg, turns, chain),
// .carry(at, leg, turns, place, chain, block).
template <class Scan>
__device__ __forceinline__ void run_deep_scan(const Scan& scan) {
  typename Scan::Turns places;
  const auto& args = scan.args;
  unsigned* const drawn = places.drawn();
  if (threadIdx.x == 0) {
    places.begin();
    *drawn = args.shared.chunks > 0 ? draw_number(args.shared.signals, gridDim.x) : blockIdx.x;
  }
  __syncthreads();
  const unsigned block = *drawn;
  const auto for_each_leg = [&](const auto& work) {
#pragma unroll 1
    for (DeltaLegs legs(args.shared, args.cut.items, block); legs.next();) {
      const DeltaScanItem<64> at(legs.item, args.cut, args.sequences, args.segments,
                                 args.in.value_heads, args.in.V, DeltaLayout::kDeepKeys);
      if (at.exists && legs.leg.exists(at.chunks))
        work(at, legs.leg, static_cast<int>(min(legs.leg.to, at.chunks) - legs.leg.from));
    }
  };
  const int warp = uniform_warp(), group = warp / 4;
  if (group < kDeepChains) {
    group_takes_registers<kDeepCarrierRegisters>();
    for_each_leg([&](const auto& at, const DeltaLeg& leg, int turns) {
      scan.carry(at, leg, turns, places, group, block);
    });
    return;
  }
  group_gives_registers<kDeepMoverRegisters>();
  const int mover = warp - 4 * kDeepChains, sender = mover - 2;
  if (sender >= 0) {
    for_each_leg(
        [&](const auto& at, const DeltaLeg& leg, int turns) { scan.send(at, leg, turns, sender); });
  } else if (32 * mover < Scan::Turns::kLoaders) {
    for_each_leg(
        [&](const auto& at, const DeltaLeg& leg, int turns) { scan.load(at, leg, turns, places); });
    places.finish();
  }
}

// What an item's walk starts with, and what it leaves behind.
template <class Item>
__device__ __forceinline__ void load_start(DeepState& state, const DeltaSegments& segments,
                                           const Item& at, const DeltaStates& outer,
                                           bool at_the_edge, int64_t segment, int value, int K) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    load_start(state.halves[half], segments, at, outer, at_the_edge, segment, value,
               half * DeepState::kHalf, K);
}
template <class Item>
__device__ __forceinline__ void store_end(const DeepState& state, const DeltaSegments& segments,
                                          const Item& at, const DeltaStates& outer,
                                          bool at_the_edge, int64_t segment, int value, int K) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
    store_end(state.halves[half], segments, at, outer, at_the_edge, segment, value,
              half * DeepState::kHalf, K);
}

// 129 to 256 keys, BFloat16 and Float16.
template <typename T>
void launch_delta_group_deep_scan(const DeltaScanArgs<T>& args, bool outputs,
                                  const LaunchShape& shape, GpuStream stream);
template <typename T>
void launch_delta_group_deep_reverse_scan(const DeltaReverseScanArgs<T>& args,
                                          const LaunchShape& shape, GpuStream stream);

}  // namespace linescan
