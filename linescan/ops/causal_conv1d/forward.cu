// causal_conv1d, forward.
//
//   sum[t] = bias + sum over j of weight[j] x[t - (width - 1) + j]          out = SiLU(sum), or sum
//
//   x, out [batch, length, channels]   weight [channels, width], bias [channels] float32
//   states [sequences, channels, width - 1], in the type of x
//
// A thread owns four channels (one memory access) and walks along a run of tokens with the last
// width - 1 in registers. States are left to a launch of their own, so that they may be advanced in
// place; a single token does both at once.
//
// Numerics:  sums in float32; out is rounded once. SiLU by the special-function units.
// Reference: reference.cpp beside this file; bounds in tests/ops/causal_conv1d_gpu_test.cpp.

#include "linescan/base/math.h"
#include "linescan/ops/causal_conv1d/gpu_tokens.cuh"
#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/device_code/softplus.cuh"

namespace linescan {
namespace {

constexpr int kStateThreads = 128;

template <typename T>
struct ForwardArgs {
  ConvTokens<T> in;
  ConvCut cut;
  Tensor3<T> out, final_state;
  int64_t states;  // sequences x channels
};

template <typename T, int kVector, int kWidth>
__global__ void __launch_bounds__(128) forward_kernel(ForwardArgs<T> args) {
  using Numbers = Pack<T, kVector>;
  const ConvTokens<T>& in = args.in;
  const ConvCut& cut = args.cut;
  const int channel = channel_of<kVector>(cut);
  const int64_t number = first_run(cut);
  if (!takes_part(cut, channel, in.channels) || number >= cut.runs) return;
  const int64_t item = number / cut.runs_an_item;
  int64_t t = number % cut.runs_an_item * cut.run;
  const int64_t end = min(t + cut.run, in.sequences.length);
  const int64_t x_step = in.x.strides[1], out_step = args.out.strides[1];
  const T* __restrict__ x = in.x.at(item, 0, channel);
  T* __restrict__ out = args.out.at(item, 0, channel);
  const ConvWeights<kVector, kWidth> weights(in.weight, in.bias, channel);

  while (t < end) {
    const ConvSequence s = in.sequences.of_token(item, t);
    const int64_t stop = min(s.end, end);
    if (s.number < 0) {
      for (; t < stop; ++t) *reinterpret_cast<Numbers*>(out + t * out_step) = Numbers{};  // zeros
      continue;
    }
    float taps[kWidth][kVector];
    in.fill(taps, s, item, t, channel);
#pragma unroll 4
    for (; t < stop; ++t) {
      const Numbers now = *reinterpret_cast<const Numbers*>(x + t * x_step);
      shift(taps);
      Numbers result;
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        taps[kWidth - 1][c] = to_float(now.values[c]);
        const float sum = weights.sum(taps, c);
        result.values[c] = from_float<T>(in.silu ? sum * sigmoid(sum) : sum);
      }
      *reinterpret_cast<Numbers*>(out + t * out_step) = result;
    }
  }
}

// A thread takes one channel of one sequence: its last inputs become the state.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kStateThreads) state_kernel(ForwardArgs<T> args) {
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (number >= args.states) return;
  const int channel = static_cast<int>(number % args.in.channels);
  const ConvSequence s = args.in.sequences.get(number / args.in.channels);
  float rows[kWidth - 1];
#pragma unroll
  for (int place = 0; place < kWidth - 1; ++place)
    rows[place] = args.in.template input<kWidth>(s, args.in.item_of(s),
                                                 s.end - (kWidth - 1) + place, channel);
#pragma unroll
  for (int place = 0; place < kWidth - 1; ++place)
    *args.final_state.at(s.number, channel, place) = from_float<T>(rows[place]);
}

// The same with the output, for sequences of one token.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kStateThreads) token_kernel(ForwardArgs<T> args) {
  const ConvTokens<T>& in = args.in;
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (number >= args.states) return;
  const int channel = static_cast<int>(number % in.channels);
  const ConvSequence s = in.sequences.get(number / in.channels);
  const ConvWeights<1, kWidth> weights(in.weight, in.bias, channel);
  float taps[kWidth][1];
#pragma unroll
  for (int tap = 0; tap < kWidth; ++tap)
    taps[tap][0] = in.template input<kWidth>(s, s.number, tap - (kWidth - 1), channel);
  const float sum = weights.sum(taps, 0);
  *args.out.at(s.number, 0, channel) = from_float<T>(in.silu ? sum * sigmoid(sum) : sum);
#pragma unroll
  for (int place = 0; place < kWidth - 1; ++place)
    *args.final_state.at(s.number, channel, place) = from_float<T>(taps[place + 1][0]);
}

}  // namespace

void forward(const CausalConv1dProblem& p, const CausalConv1dGpuPlan& plan, std::byte*,
             GpuStream stream) {
  const CausalConv1dSize size = size_of(p);
  dispatch_data(p.x.dtype, [&]<typename T>() {
    const ForwardArgs<T> args = {conv_tokens<T>(p), conv_cut(plan, size), tensor3<T>(p.out),
                                 tensor3<T>(p.final_state), size.sequences * size.channels};
    const LaunchShape states = {ceil_div(args.states, kStateThreads), kStateThreads};
    dispatch_conv(plan.vector, size.width, [&]<int kVector, int kWidth>() {
      if (p.final_state && !p.offsets && size.length == 1)
        return launch("causal_conv1d, one token", token_kernel<T, kWidth>, states, stream, args);
      launch("causal_conv1d", forward_kernel<T, kVector, kWidth>,
             {plan.grid(), static_cast<int>(plan.block)}, stream, args);
      if (p.final_state)
        launch("causal_conv1d, states", state_kernel<T, kWidth>, states, stream, args);
    });
  });
}

}  // namespace linescan
