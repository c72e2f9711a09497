// What the kernels of causal_conv1d share: a thread's channels and tokens, and what stands where.
#pragma once

#include "linescan/ops/causal_conv1d/causal_conv1d.h"
#include "linescan/ops/causal_conv1d/sequence.h"
#include "linescan/ops/device_code/numbers.cuh"

namespace linescan {

// A tensor of three dimensions and any strides.
template <typename T>
struct Tensor3 {
  T* data;  // null: absent
  int64_t strides[3];

  __device__ __forceinline__ T* at(int64_t i, int64_t j, int64_t k) const {
    return data + i * strides[0] + j * strides[1] + k * strides[2];
  }
};

template <typename T>
Tensor3<T> tensor3(const TensorView& view) {
  if (!view) return {nullptr, {0, 0, 0}};
  return {view.as<T>(), {view.strides[0], view.strides[1], view.strides[2]}};
}

// Inputs and sizes, as kernels take them.
template <typename T>
struct ConvTokens {
  Tensor3<T> x, initial_state;
  const float *weight, *bias;  // no bias: null
  ConvSequences sequences;
  int channels;
  bool silu;

  // What stands at time t of a sequence of batch item `item`; t may be before the sequence's begin by
  // up to kWidth - 1.
  template <int kWidth>
  __device__ __forceinline__ float input(const ConvSequence& s, int64_t item, int64_t t,
                                         int channel) const {
    if (t >= s.begin) return to_float(*x.at(item, t, channel));
    if (!initial_state.data) return 0.f;
    return to_float(*initial_state.at(s.number, channel, kWidth - 1 + t - s.begin));
  }
  // Rows 1 to kWidth - 1 of the taps at time t - 1.
  template <int kVector, int kWidth>
  __device__ __forceinline__ void fill(float (&taps)[kWidth][kVector], const ConvSequence& s,
                                       int64_t item, int64_t t, int channel) const {
#pragma unroll
    for (int tap = 1; tap < kWidth; ++tap) {
      const int64_t time = t - kWidth + tap;
      if (time >= s.begin) {
        const auto row = *reinterpret_cast<const Pack<T, kVector>*>(x.at(item, time, channel));
#pragma unroll
        for (int c = 0; c < kVector; ++c) taps[tap][c] = to_float(row.values[c]);
      } else {
#pragma unroll
        for (int c = 0; c < kVector; ++c) taps[tap][c] = input<kWidth>(s, item, time, channel + c);
      }
    }
  }
  __device__ __forceinline__ int64_t item_of(const ConvSequence& s) const {
    return sequences.offsets ? 0 : s.number;
  }
};

template <typename T>
ConvTokens<T> conv_tokens(const CausalConv1dProblem& p) {
  const CausalConv1dSize size = size_of(p);
  return {tensor3<T>(p.x),
          tensor3<T>(p.initial_state),
          p.weight.as<float>(),
          p.bias.as<float>(),
          {p.offsets, size.sequences, size.length},
          static_cast<int>(size.channels),
          p.silu};
}

// The plan's cut, as kernels take it.
struct ConvCut {
  int run, packs_a_block, runs_a_block, chunks, groups;
  int64_t runs_an_item, runs;
};

inline ConvCut conv_cut(const CausalConv1dGpuPlan& plan, const CausalConv1dSize& size) {
  const auto number = [](int64_t value) { return static_cast<int>(value); };
  return {number(plan.run),
          number(plan.packs_a_block),
          number(plan.runs_a_block),
          number(plan.chunks),
          number(plan.groups),
          plan.runs_an_item,
          plan.runs_an_item * size.batch};
}

// The channels of a thread: [channel, channel + kVector), the same for all of its runs.
template <int kVector>
__device__ __forceinline__ int channel_of(const ConvCut& cut) {
  const int pack = blockIdx.x % cut.chunks * cut.packs_a_block + threadIdx.x % cut.packs_a_block;
  return pack * kVector;
}
// Whether the thread has work at all: blocks and packs need not fit.
__device__ __forceinline__ bool takes_part(const ConvCut& cut, int channel, int channels) {
  return threadIdx.x / cut.packs_a_block < cut.runs_a_block && channel < channels;
}
__device__ __forceinline__ int64_t first_run(const ConvCut& cut) {
  return int64_t{blockIdx.x / cut.chunks} * cut.runs_a_block + threadIdx.x / cut.packs_a_block;
}

// Weights and bias of a thread's channels.
template <int kVector, int kWidth>
struct ConvWeights {
  float weight[kWidth][kVector], bias[kVector];

  __device__ __forceinline__ ConvWeights(const float* __restrict__ weights,
                                         const float* __restrict__ biases, int channel) {
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      bias[c] = biases ? biases[channel + c] : 0.f;
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap) weight[tap][c] = weights[(channel + c) * kWidth + tap];
    }
  }
  __device__ __forceinline__ float sum(const float (&taps)[kWidth][kVector], int c) const {
    float total = bias[c];
#pragma unroll
    for (int tap = 0; tap < kWidth; ++tap) total = fmaf(weight[tap][c], taps[tap][c], total);
    return total;
  }
};

// Drops the oldest row.
template <int kVector, int kWidth>
__device__ __forceinline__ void shift(float (&rows)[kWidth][kVector]) {
#pragma unroll
  for (int row = 0; row + 1 < kWidth; ++row)
#pragma unroll
    for (int c = 0; c < kVector; ++c) rows[row][c] = rows[row + 1][c];
}

// Calls function.operator()<kVector, kWidth>() for what the plan and the problem say.
template <class Function>
void dispatch_conv(int64_t vector, int64_t width, const Function& function) {
  const auto with_width = [&]<int kWidth>() {
    if (vector == 4) return function.template operator()<4, kWidth>();
    return function.template operator()<1, kWidth>();
  };
  if (width == 2) return with_width.template operator()<2>();
  if (width == 3) return with_width.template operator()<3>();
  return with_width.template operator()<4>();
}

}  // namespace linescan
