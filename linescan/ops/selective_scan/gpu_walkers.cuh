// Several states, warps with a task each: some walk, pairs of the others prepare tiles of 16 steps for them and finish what
// they leave. What both passes share: a block's shared memory and barriers, and the work of a pair's thread.
#pragma once

#include "linescan/ops/selective_scan/gpu_state_lanes.cuh"

namespace linescan {

inline constexpr int kPairThreads = 2 * kGpuWarp;
// Steps of a tile that a thread of a pair prepares, and floats of an array [rows, kGpuSegmentPitch].
inline constexpr int kPairSteps = kGpuItems * kGpuWarp / kPairThreads;
inline constexpr int kRowsFloats = kGpuWarp * kGpuSegmentPitch;

// A block's shared memory: places of pairs, which tiles take in turn, and the barriers that pass them on. kSequences arrays
// [rows, kGpuSegmentPitch] come with a tile, each walker leaves kShares of them.
template <WalkersShape kShape, int kSequences, int kShares>
class WalkersPlaces {
 public:
  __device__ __forceinline__ explicit WalkersPlaces(const SelectiveScanGpuArguments& args)
      : walkers_(args.warps - 2 * args.places),
        last_(args.places - 1),
        steps_(floats(args.shared.items)),
        factors_(floats(args.shared.factors)),
        shares_(floats(args.shared.exchange)) {}

  static constexpr int kStates = kShape.states;  // of a walker's lane
  __device__ __forceinline__ int walkers() const { return walkers_; }
  __device__ __forceinline__ int count() const { return last_ + 1; }
  // Of the n-th tile that is walked.
  __device__ __forceinline__ int of(int n) const { return n & last_; }
  __device__ __forceinline__ float* steps(int place, int which) const {
    return steps_ + (kSequences * place + which) * kRowsFloats;
  }
  // B, then C, of a state: [states, kWalkersPitch].
  __device__ __forceinline__ float* factors(int place) const {
    return factors_ + place * walkers_ * (kStates * kWalkersPitch);
  }
  __device__ __forceinline__ float* share(int place, int walker, int which) const {
    return shares_ + ((place * walkers_ + walker) * kShares + which) * kRowsFloats;
  }

  // A pair has prepared a tile; all walkers have walked it.
  __device__ __forceinline__ void prepared(int place) const {
    barrier_arrive(1 + place, threads());
  }
  __device__ __forceinline__ void await_prepared(int place) const {
    barrier_wait(1 + place, threads());
  }
  __device__ __forceinline__ void walked(int place) const {
    barrier_arrive(1 + kShape.places + place, threads());
  }
  __device__ __forceinline__ void await_walked(int place) const {
    barrier_wait(1 + kShape.places + place, threads());
  }
  // All threads of all pairs.
  __device__ __forceinline__ void meet_pairs() const {
    barrier_wait(1 + 2 * kShape.places, count() * kPairThreads);
  }

  // The sum of what walkers left at some steps of a row.
  __device__ __forceinline__ void add_shares(int place, int which, int at,
                                             float (&sum)[kPairSteps]) const {
    const float* from = share(place, 0, which) + at;
#pragma unroll 4
    for (int walker = 0; walker < walkers_; ++walker, from += kShares * kRowsFloats)
#pragma unroll
      for (int i = 0; i < kPairSteps; i += 4) {
        const auto some = *reinterpret_cast<const Pack<float, 4>*>(from + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i + j] += some.values[j];
      }
  }

 private:
  int walkers_, last_;
  float *steps_, *factors_, *shares_;

  static __device__ __forceinline__ float* floats(int64_t offset) {
    return reinterpret_cast<float*>(shared_memory() + offset);
  }
  __device__ __forceinline__ int threads() const { return walkers_ * kGpuWarp + kPairThreads; }
};

// What a thread of a pair does: some steps of one row, in every tile that is the pair's.
struct PairPlace {
  int pair, thread, row, half;  // half: the first of its steps
  bool exists;
  int channel;
  float D, bias;          // of the row
  int whole_tiles, rest;  // rest: steps of its own in the tile behind them

  __device__ __forceinline__ PairPlace(const SelectiveScanGpuArguments& args,
                                       const GpuPlace<1>& place, int walkers) {
    const int helper = place.warp - walkers;
    pair = helper / 2;
    thread = helper % 2 * kGpuWarp + place.lane;
    row = thread / 2;
    half = thread % 2 * kPairSteps;
    exists = row < place.rows;
    channel = place.channel - place.row + row;
    // The sums are there to be waited for here: in a loop a wait for these two would be one for all that is under way.
    D = (args.D && exists ? args.D[channel] : 0.f) + 0.f;
    bias = (args.delta_bias && exists ? args.delta_bias[channel] : 0.f) + 0.f;
    whole_tiles = static_cast<int>(args.length / kGpuItems);
    rest = min(max(static_cast<int>(args.length % kGpuItems) - half, 0), kPairSteps);
  }
  // Floats from an array [rows, kGpuSegmentPitch] to the own steps.
  __device__ __forceinline__ int own() const { return row * kGpuSegmentPitch + half; }
  // Of the own steps of a tile, how many exist.
  __device__ __forceinline__ int count(int tile) const {
    return tile < whole_tiles ? kPairSteps : tile == whole_tiles ? rest : 0;
  }
  // The own steps of a sequence, from those of `tile` on.
  template <typename T>
  __device__ __forceinline__ OwnSteps<T, kPairSteps> steps(const GpuSequence& q, int item,
                                                           int tile) const {
    const bool some = q.data != nullptr && exists;
    return {q, !some ? nullptr
                     : q.data + item * q.batch + channel * q.channel +
                           (int64_t{tile} * kGpuItems + half) * q.step};
  }
};

// B and C of a pair's tiles, from memory to registers and from there as floats to shared memory: a thread has half of a
// tile's steps of B or C of a state, in turns of so many states. Zero where there is no state, and behind the row's end.
template <typename T, class Places>
class PairFactors {
 public:
  __device__ __forceinline__ PairFactors(const SelectiveScanGpuArguments& args,
                                         const GpuPlace<1>& place, const PairPlace& own,
                                         const Places& places, int tile)
      : factor_(args.factors[own.thread / 2 % 2]),
        thread_(own.thread),
        padded_(places.walkers() * Places::kStates),
        states_(args.states),
        turn_(kStates * factor_.state),
        from_(factor_.data + place.item * factor_.batch + place.group * factor_.group +
              thread_ / 4 * factor_.state + (int64_t{tile} * kGpuItems + own.half) * factor_.step) {
  }

  // The thread's own steps, of which `count` exist.
  __device__ __forceinline__ void load(int count) {
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int n = thread_ / 4 + turn * kStates;
      if (n >= padded_) break;
      const unsigned char* const from = from_ + turn * turn_;
      if (factor_.vectors && count == kPairSteps && n < states_)
        items_[turn] = load_words<T, kPairSteps, 4>(from);
      else
        items_[turn] =
            load_items<T, kPairSteps>(from, factor_.step, factor_.unit, n < states_ ? count : 0);
    }
  }
  __device__ __forceinline__ void move(int64_t steps) { from_ += steps * factor_.step; }
  __device__ __forceinline__ void give(float* factors) const {
    float* to = factors + thread_ / 4 * kWalkersPitch + thread_ % 4 * kPairSteps;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn, to += kStates * kWalkersPitch) {
      if (thread_ / 4 + turn * kStates >= padded_) break;
      float x[kPairSteps];
#pragma unroll
      for (int j = 0; j < kPairSteps; ++j) x[j] = items_[turn][j];
      give_own(x, to);
    }
  }

 private:
  static constexpr int kStates = kPairThreads / 4;  // of a turn
  static constexpr int kTurns = (kWalkersMost * Places::kStates + kStates - 1) / kStates;
  const GpuFactor& factor_;
  int thread_, padded_, states_;
  int64_t turn_;
  const unsigned char* from_;
  GpuRawItems<T, kPairSteps> items_[kTurns];
};

// dt of some steps; zero, which changes nothing, behind the `count` that exist.
template <typename T>
__device__ __forceinline__ void steps_of_delta(const SelectiveScanGpuArguments& args, float bias,
                                               const GpuRawItems<T, kPairSteps>& delta, int count,
                                               float (&dt)[kPairSteps]) {
#pragma unroll
  for (int j = 0; j < kPairSteps; ++j) dt[j] = delta[j] + bias;
  if (args.softplus)
#pragma unroll
    for (int j = 0; j < kPairSteps; ++j) dt[j] = softplus(dt[j]);
  if (count < kPairSteps)
#pragma unroll
    for (int j = 0; j < kPairSteps; ++j)
      if (j >= count) dt[j] = 0;
}

}  // namespace linescan
