// What the packed kernels for several states have of their own: B and C of a pair of states, and the states that
// go from chunk to chunk.
#pragma once

#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

// Shared memory behind the sums, see gpu_states_bytes: rates, links, signals.
struct StateMemory {
  float2* rates;      // [routes, states, 8]: -exp(A_log) of channels 2g and 2g + 1
  float4* links;      // [warps, pairs, 8]: of channels 2g and 2g + 1, a state after the other
  uint64_t* signals;  // [warps, pairs]
  int pairs;

  template <typename T>
  __device__ __forceinline__ StateMemory(float* memory, const Ss2dGpuArguments<T>& args)
      : pairs(args.states / 2) {
    constexpr int kPairs = kGpuChannels / 2;
    const int warps = static_cast<int>(blockDim.x) / 32;
    rates = keep_shared(reinterpret_cast<float2*>(memory));
    links = reinterpret_cast<float4*>(rates + args.routes * args.states * kPairs);
    signals = reinterpret_cast<uint64_t*>(links + warps * pairs * kPairs);
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
    for (int i = threadIdx.x; i < threads / 32 * pairs; i += threads) begin_signal(signals + i);
  }
};

// Hands pairs of states from chunk to chunk. The chunks of all routes make one chain, which goes round the warps of a block:
// warp w has the ones numbered w, w + warps, ..; so what a warp gives is taken before its place is written again. kSolo: one
// warp, which hands them to itself.
template <bool kSolo>
struct StateLinks {
  float4 *own, *before;  // of the lane's g: this warp's, and that of the warp with the chunk before
  uint64_t *given, *awaited;
  int turn;  // of the chunk before

  __device__ __forceinline__ StateLinks(const StateMemory& memory, int warp, int warps)
      : turn(warp == 0 ? -1 : 0) {
    const int from = (warp == 0 ? warps : warp) - 1, g = threadIdx.x % 32 / 4;
    own = memory.links + warp * memory.pairs * (kGpuChannels / 2) + g;
    before = memory.links + from * memory.pairs * (kGpuChannels / 2) + g;
    given = memory.signals + warp * memory.pairs;
    awaited = memory.signals + from * memory.pairs;
  }
  // What the chunk before left of a pair: of no use where a route begins.
  __device__ __forceinline__ float4 take(int pair) const {
    if (kSolo)
      __syncwarp();
    else if (turn >= 0)
      wait_signal(awaited + pair, turn);
    return before[pair * (kGpuChannels / 2)];
  }
  // `states` are those of lane `source` of each g.
  __device__ __forceinline__ void give(int pair, int q, int source, float4 states) const {
    if (kSolo) __syncwarp();
    if (q == source) own[pair * (kGpuChannels / 2)] = states;
    __syncwarp();
    if (!kSolo && threadIdx.x % 32 == 0) give_signal(given + pair);
  }
  __device__ __forceinline__ void next_chunk() { ++turn; }
};

// B and C of eight states at the lane's columns of a chunk's records, and of one of them at its own steps.
template <typename T>
struct StateFactors {
  RecordColumns<T, 1> B, C;

  // Of states 8 eight to 8 eight + 7, or as many as there are.
  template <bool kWhole>
  __device__ __forceinline__ void load(const Ss2dGpuArguments<T>& args,
                                       const RecordWalk<T, 1, kWhole>& of_B,
                                       const RecordWalk<T, 1, kWhole>& of_C, const TileRoute& route,
                                       const SegmentCursor& cursor, int eight) {
    const int own = 2 * (static_cast<int>(threadIdx.x) % 4), last = args.record - 2;
    const auto further = [&](int first) {
      return min(first + 8 * eight + own, last) - min(first + own, last);
    };
    of_B.load(B, route, cursor, further(args.rank));
    of_C.load(C, route, cursor, further(args.rank + args.states));
  }
  // Of state number n of the eight: products with rows of a single one.
  __device__ __forceinline__ void multiply(int n, float (&own_B)[2 * kGpuProducts],
                                           float (&own_C)[2 * kGpuProducts]) const {
    const bool here = n / 2 == static_cast<int>(threadIdx.x) % 4;
    const uint32_t one = here ? pair_from_floats<T>(n % 2 == 0, n % 2 == 1) : 0u;
    const FragmentA<T> rows = {{one, 0u, 0u, one}};
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      constexpr float kZero[4] = {};
      float both[4];
      linescan::multiply(both, rows, FragmentB<T>{{B.words[j][0], C.words[j][0]}}, kZero);
      own_B[2 * j] = both[0];
      own_B[2 * j + 1] = both[1];
      own_C[2 * j] = both[2];
      own_C[2 * j + 1] = both[3];
    }
  }
};

}  // namespace linescan
