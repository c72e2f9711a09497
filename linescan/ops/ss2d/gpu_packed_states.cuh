// What the packed kernels for several states have of their own: B and C of a pair of states, what goes from chunk to chunk, and
// which problems are theirs.
#pragma once

#include <algorithm>

#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

// The lane, kept in a register: else it is read anew, slowly, wherever it is used.
__device__ __forceinline__ int kept_lane() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return __shfl_sync(kAllLanes, lane, lane);
}

// Shared memory behind the sums, see gpu_states_bytes. What goes from chunk to chunk at a time is a pair of states of two channels.
struct StateMemory {
  static constexpr int kPairs = kGpuChannels / 2;
  static constexpr int kPlace = kPairs + 1;  // the ninth has the signal
  float2* rates;  // [routes, states, 8]: -exp(A_log) of channels 2g and 2g + 1
  float4* links;  // [warps, pairs of states, kPlace]
  int pairs;      // of states

  template <typename T>
  __device__ __forceinline__ StateMemory(float* memory, const Ss2dGpuArguments<T>& args)
      : rates(keep_shared(reinterpret_cast<float2*>(memory))),
        links(reinterpret_cast<float4*>(rates + args.routes * args.states * kPairs)),
        pairs(args.states / 2) {}
  // What is behind the links.
  __device__ __forceinline__ float* behind(int warps) const {
    return reinterpret_cast<float*>(links + warps * pairs * kPlace);
  }
  // By the whole block, which meets before anything is read.
  template <typename T>
  __device__ __forceinline__ void begin(const Ss2dGpuArguments<T>& args, const BlockPlace& place) {
    auto* const table = reinterpret_cast<float*>(rates);
    const int first = place.group * kGpuChannels, threads = static_cast<int>(blockDim.x);
    for (int i = threadIdx.x; i < args.routes * args.states * kGpuChannels; i += threads) {
      const int channel = min(first + i % kGpuChannels, args.channels - 1);
      const int row = i / kGpuChannels, k = row / args.states, n = row - k * args.states;
      const int64_t at = (static_cast<int64_t>(k) * args.channels + channel) * args.states + n;
      table[i] = -exp2_approx(kLog2e * args.A_log[at]);
    }
    for (int i = threadIdx.x; i < threads / 32 * pairs; i += threads)
      begin_signal(reinterpret_cast<uint64_t*>(links + i * kPlace + kPairs));
  }
};

// Hands states from chunk to chunk, pair by pair. The chunks of all routes make one chain, which goes round the warps of a
// block: warp w has the ones numbered w, w + warps, ..; so what a warp gives is taken before its place is written again. kSolo:
// one warp, which hands them to itself.
template <bool kSolo>
struct StateLinks {
  static constexpr int kPlace = StateMemory::kPlace, kSignal = kPlace - 1;
  float4 *own, *before;  // of the lane's g: this warp's, and that of the warp with the chunk before
  int turn;              // of the chunk before

  __device__ __forceinline__ StateLinks(const StateMemory& memory, int warp, int warps)
      : turn(warp == 0 ? -1 : 0) {
    const int from = (warp == 0 ? warps : warp) - 1;
    own = keep_shared(memory.links + warp * memory.pairs * kPlace + g());
    before = keep_shared(memory.links + from * memory.pairs * kPlace + g());
  }
  __device__ __forceinline__ static int g() { return static_cast<int>(threadIdx.x) % 32 / 4; }

  // What the chunk before left of a pair: of no use where a route begins.
  __device__ __forceinline__ float4 take(int pair) const {
    const float4* const place = before + pair * kPlace;
    if (kSolo)
      __syncwarp();
    else if (turn >= 0)
      wait_signal(reinterpret_cast<const uint64_t*>(place + kSignal - g()), turn);
    return *place;
  }
  // `states` are those of lane `source` of each g.
  __device__ __forceinline__ void give(int pair, int q, int source, float4 states) const {
    float4* const place = own + pair * kPlace;
    if (kSolo) __syncwarp();
    if (q == source) *place = states;
    __syncwarp();
    if (!kSolo && threadIdx.x % 32 == 0) give_signal(reinterpret_cast<uint64_t*>(place + kSignal));
  }
  __device__ __forceinline__ void next_chunk() { ++turn; }
};

// B and C of eight states at the lane's columns of a chunk's records, and of a pair of them at its own steps.
template <typename T>
struct StateFactors {
  RecordColumns<T, 1> B, C;

  // Of eight states from `first_state` on, or as many as there are; of_B: of state 0.
  template <bool kWhole>
  __device__ __forceinline__ void load(const Ss2dGpuArguments<T>& args,
                                       const RecordWalk<T, 1, kWhole>& of_B,
                                       const ChunkRoute& route, const SegmentCursor& cursor,
                                       int first_state) {
    const int own = 2 * (static_cast<int>(threadIdx.x) % 4), last = args.record - 2;
    const int first = min(args.rank + own, last);
    const auto further = [&](int number) { return min(number + first_state + own, last) - first; };
    of_B.load(B, route, cursor, further(args.rank));
    of_B.load(C, route, cursor, further(args.rank + args.states));
  }
  // Of pair number `pair` of the eight: products with rows of a single one, of which each state has one.
  __device__ __forceinline__ void multiply(int pair, int q, float (&own_B)[2][2 * kGpuProducts],
                                           float (&own_C)[2][2 * kGpuProducts]) const {
    const bool here = pair == q;
    FragmentA<T> rows = {};
    rows.words[0] = here ? pair_from_floats<T>(1, 0) : 0u;
    rows.words[1] = here ? pair_from_floats<T>(0, 1) : 0u;
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      pick(own_B, rows, B.words[j][0], j);
      pick(own_C, rows, C.words[j][0], j);
    }
  }

 private:
  __device__ __forceinline__ static void pick(float (&own)[2][2 * kGpuProducts],
                                              const FragmentA<T>& rows, uint32_t columns, int j) {
    constexpr float kZero[4] = {};
    float both[4];
    multiply_half(both, rows, columns, kZero);
#pragma unroll
    for (int i = 0; i < 4; ++i) own[i / 2][2 * j + i % 2] = both[i];
  }
};

// Whether these kernels can read the data of a problem that the plan gives them: restarting lines are not theirs.
template <typename T>
bool packed_states_data(const Ss2dGpuArguments<T>& args, const Ss2dGpuPlan& plan) {
  return plan.walks_states && packed_data(args) &&
         std::none_of(args.codes, args.codes + args.routes,
                      [](unsigned char code) { return code & kRestart; });
}

// Calls function.operator()<kEights, kWhole, kSolo>() for a problem and its plan.
template <typename T, class Function>
void dispatch_states(const Ss2dGpuArguments<T>& args, const Ss2dGpuPlan& plan,
                     const Function& function) {
  dispatch_halves<kGpuStatesEights>((args.rank + 7) / 8, [&]<int kEights>() {
    const auto of_lines = [&]<bool kWhole>() {
      plan.block == 32 ? function.template operator()<kEights, kWhole, true>()
                       : function.template operator()<kEights, kWhole, false>();
    };
    whole_lines(args) ? of_lines.template operator()<true>()
                      : of_lines.template operator()<false>();
  });
}

}  // namespace linescan
