// The recurrence of one state over the chunks that the warps of a block work on side by side.
#pragma once

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/ss2d/gpu_chunk.cuh"

namespace linescan {

// Hands transfers of chunks from warp to warp. One round: every warp gives its chunk's transfer, all
// wait, every warp learns the state that enters its chunk; the last warp leaves what the next round
// starts with. Two sets of slots make one barrier a round enough.
struct Relay {
  float4* transfers;  // [2, warps, 8]: of channels 2g and 2g + 1, (factor, offset) twice
  float2* carry;      // [2, states, 8]
  int states, turn = 0;

  static constexpr int kPairs = kGpuChannels / 2;

  // `memory`: gpu_transfer_bytes of shared memory, and behind them kGpuCarryFloats a state unless these are
  // at `carries`, the block's own in the workspace.
  __device__ __forceinline__ Relay(void* memory, float* carries, int states)
      : transfers(static_cast<float4*>(memory)),
        carry(carries ? reinterpret_cast<float2*>(carries)
                      : reinterpret_cast<float2*>(transfers + 2 * (blockDim.x / 32) * kPairs)),
        states(states) {}

  // The state that enters round 0, for channels 2g and 2g + 1; the next exchange makes it visible.
  __device__ __forceinline__ void start(int n, int g, float2 state) {
    carry[n * kPairs + g] = state;
  }

  // `own` [2]: the transfer of this warp's chunk, the same in all lanes of a g. `round` counts from
  // 0 after start(). `place`: this warp's rank in the order of the chunks.
  __device__ __forceinline__ float2 exchange(const Affine (&own)[2], int round, int n, int g,
                                             int place, bool writes) {
    const int warps = blockDim.x / 32;
    float4* slots = transfers + turn * warps * kPairs;
    turn ^= 1;
    if (writes)
      slots[place * kPairs + g] =
          make_float4(own[0].factor, own[0].offset, own[1].factor, own[1].offset);
    __syncthreads();
    float2 h = carry[((round & 1) * states + n) * kPairs + g];
    for (int w = 0; w < place; ++w) {
      const float4 t = slots[w * kPairs + g];
      h = make_float2(fmaf(t.x, h.x, t.y), fmaf(t.z, h.y, t.w));
    }
    if (writes && place == warps - 1)
      carry[(((round & 1) ^ 1) * states + n) * kPairs + g] = make_float2(own[0](h.x), own[1](h.y));
    return h;
  }
};

}  // namespace linescan
