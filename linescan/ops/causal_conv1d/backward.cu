// causal_conv1d, backward.
//
//   ga[t] = gout[t] SiLU'(sum[t]), the sum computed again, or gout[t]
//   gweight[j] = sum over t of ga[t] x[t - (width - 1) + j]       gbias = sum ga
//   gx[t] = sum over j of weight[width - 1 - j] ga[t + j], plus the gradient of the final state
//
//   x, gout, gx [batch, length, channels]   gweight [channels, width], gbias [channels] float32
//
// One walk over the tokens with the last width of x and of ga in registers: x and gout are read once,
// gx is written width - 1 tokens behind. A run reads on behind its end, where it computes ga again and
// leaves the sums alone. A launch of its own adds up the blocks' sums in order; another makes the
// gradient of the initial states from the first tokens of every sequence.
//
// Numerics:  sums in float32, no atomics: two runs give the same bits.
// Reference: reference.cpp beside this file; bounds in tests/ops/causal_conv1d_gpu_test.cpp.

#include "linescan/base/math.h"
#include "linescan/ops/causal_conv1d/gpu_tokens.cuh"
#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/device_code/ordered_sums.h"
#include "linescan/ops/device_code/softplus.cuh"

namespace linescan {
namespace {

constexpr int kStateThreads = 128;

template <typename T>
struct BackwardArgs {
  ConvTokens<T> in;
  ConvCut cut;
  Tensor3<T> gout, gfinal;  // null: zero
  Tensor3<T> gx, ginitial;
  float* sums;     // [groups, (width + 1) channels]: weight [channels, width], then bias
  int64_t states;  // sequences x channels
};

// The gradient of a sum, from that of the output.
__device__ __forceinline__ float through_silu(float gradient, float sum) {
  const float s = sigmoid(sum);
  return gradient * (s * fmaf(sum, 1.f - s, 1.f));
}

// What a thread gathers over all of its runs.
template <int kVector, int kWidth>
struct Gathered {
  float weight[kWidth][kVector] = {}, bias[kVector] = {};
};

// Tokens t .. stop - 1 of sequence s.
template <typename T, int kVector, int kWidth>
__device__ __forceinline__ void walk(const BackwardArgs<T>& args,
                                     const ConvWeights<kVector, kWidth>& weights,
                                     const ConvSequence& s, int64_t item, int64_t t, int64_t stop,
                                     int channel, Gathered<kVector, kWidth>& gathered) {
  using Numbers = Pack<T, kVector>;
  const ConvTokens<T>& in = args.in;
  const int64_t x_step = in.x.strides[1], gout_step = args.gout.strides[1],
                gx_step = args.gx.strides[1];
  const T* __restrict__ x = in.x.at(item, 0, channel);
  const T* __restrict__ gout = args.gout.data ? args.gout.at(item, 0, channel) : nullptr;
  T* __restrict__ gx = args.gx.at(item, 0, channel);

  float taps[kWidth][kVector], ga[kWidth][kVector] = {};
#pragma unroll
  for (int tap = 1; tap < kWidth; ++tap)
#pragma unroll
    for (int c = 0; c < kVector; ++c)
      taps[tap][c] = in.template input<kWidth>(s, item, t - kWidth + tap, channel + c);
  const int64_t first = t;
  for (; t < stop + kWidth - 1; ++t) {
    shift(taps);
    shift(ga);
    const bool inside = t < s.end;
    const Numbers now = inside ? *reinterpret_cast<const Numbers*>(x + t * x_step) : Numbers{};
    const Numbers up =
        inside && gout ? *reinterpret_cast<const Numbers*>(gout + t * gout_step) : Numbers{};
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      taps[kWidth - 1][c] = to_float(now.values[c]);
      float gradient = to_float(up.values[c]);
      if (in.silu) gradient = through_silu(gradient, weights.sum(taps, c));
      ga[kWidth - 1][c] = inside ? gradient : 0.f;
      if (t >= stop) continue;
      gathered.bias[c] += gradient;
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap)
        gathered.weight[tap][c] = fmaf(gradient, taps[tap][c], gathered.weight[tap][c]);
    }
    const int64_t done = t - (kWidth - 1);
    if (done < first) continue;
    const int64_t place = done - (s.end - (kWidth - 1));  // in the final state
    Numbers result;
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      float total = args.gfinal.data && place >= 0
                        ? to_float(*args.gfinal.at(s.number, channel + c, place))
                        : 0.f;
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap)
        total = fmaf(weights.weight[kWidth - 1 - tap][c], ga[tap][c], total);
      result.values[c] = from_float<T>(total);
    }
    *reinterpret_cast<Numbers*>(gx + done * gx_step) = result;
  }
}

template <typename T, int kVector, int kWidth>
__global__ void __launch_bounds__(128) backward_kernel(BackwardArgs<T> args) {
  const ConvTokens<T>& in = args.in;
  const ConvCut& cut = args.cut;
  const int channel = channel_of<kVector>(cut);
  Gathered<kVector, kWidth> gathered;
  if (takes_part(cut, channel, in.channels)) {
    const ConvWeights<kVector, kWidth> weights(in.weight, in.bias, channel);
    for (int64_t number = first_run(cut); number < cut.runs;
         number += int64_t{cut.groups} * cut.runs_a_block) {
      const int64_t item = number / cut.runs_an_item;
      int64_t t = number % cut.runs_an_item * cut.run;
      const int64_t end = min(t + cut.run, in.sequences.length);
      while (t < end) {
        const ConvSequence s = in.sequences.of_token(item, t);
        const int64_t stop = min(s.end, end);
        if (s.number >= 0)
          walk(args, weights, s, item, t, stop, channel, gathered);
        else
          for (int64_t none = t; none < stop; ++none)
            *reinterpret_cast<Pack<T, kVector>*>(args.gx.at(item, none, channel)) = {};
        t = stop;
      }
    }
  }

  // The block's runs are added up in order, one row of the gathered sums at a time.
  float* shared = reinterpret_cast<float*>(shared_memory());  // [run, pack, channel of the pack]
  float* sums = args.sums + int64_t{blockIdx.x / cut.chunks} * (kWidth + 1) * in.channels;
  const int columns = cut.packs_a_block * kVector;
  const int first_channel = blockIdx.x % cut.chunks * columns;
#pragma unroll
  for (int row = 0; row <= kWidth; ++row) {
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kVector; ++c)
      shared[threadIdx.x * kVector + c] =
          row < kWidth ? gathered.weight[row % kWidth][c] : gathered.bias[c];
    __syncthreads();
    for (int place = threadIdx.x; place < columns; place += blockDim.x) {
      const int c = first_channel + place;
      if (c >= in.channels) continue;
      float total = 0;
      for (int run = 0; run < cut.runs_a_block; ++run) total += shared[run * columns + place];
      sums[row < kWidth ? c * kWidth + row : kWidth * in.channels + c] = total;
    }
  }
}

// A thread takes one channel of one sequence: what its first tokens and the final state hand on.
template <typename T, int kWidth>
__global__ void __launch_bounds__(kStateThreads) initial_kernel(BackwardArgs<T> args) {
  const ConvTokens<T>& in = args.in;
  const int64_t number = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (number >= args.states) return;
  const int channel = static_cast<int>(number % in.channels);
  const ConvSequence s = in.sequences.get(number / in.channels);
  const int64_t item = in.item_of(s), length = s.end - s.begin;
  const ConvWeights<1, kWidth> weights(in.weight, in.bias, channel);
  float taps[kWidth][1], ginitial[kWidth - 1] = {};
#pragma unroll
  for (int tap = 1; tap < kWidth; ++tap)
    taps[tap][0] = in.template input<kWidth>(s, item, s.begin - kWidth + tap, channel);
#pragma unroll
  for (int i = 0; i < kWidth - 1; ++i) {
    if (i >= length) break;
    shift(taps);
    taps[kWidth - 1][0] = in.template input<kWidth>(s, item, s.begin + i, channel);
    float gradient = args.gout.data ? to_float(*args.gout.at(item, s.begin + i, channel)) : 0.f;
    if (in.silu) gradient = through_silu(gradient, weights.sum(taps, 0));
#pragma unroll
    for (int tap = 0; tap + i < kWidth - 1; ++tap)
      ginitial[i + tap] = fmaf(weights.weight[tap][0], gradient, ginitial[i + tap]);
  }
#pragma unroll
  for (int place = 0; place < kWidth - 1; ++place) {
    float total = ginitial[place];
    if (args.gfinal.data && place >= length)
      total += to_float(*args.gfinal.at(s.number, channel, place - length));
    *args.ginitial.at(s.number, channel, place) = from_float<T>(total);
  }
}

}  // namespace

void backward(const CausalConv1dProblem& p, const CausalConv1dGradients& g,
              const CausalConv1dGpuPlan& plan, std::byte* workspace, GpuStream stream) {
  const CausalConv1dSize size = size_of(p);
  float* sums = reinterpret_cast<float*>(workspace);
  dispatch_data(p.x.dtype, [&]<typename T>() {
    const BackwardArgs<T> args = {conv_tokens<T>(p),
                                  conv_cut(plan, size),
                                  tensor3<T>(g.out),
                                  tensor3<T>(g.final_state),
                                  tensor3<T>(g.x),
                                  tensor3<T>(g.initial_state),
                                  sums,
                                  size.sequences * size.channels};
    dispatch_conv(plan.vector, size.width, [&]<int kVector, int kWidth>() {
      launch("causal_conv1d backward", backward_kernel<T, kVector, kWidth>,
             {plan.grid(), static_cast<int>(plan.block), plan.shared_bytes}, stream, args);
      if (g.initial_state)
        launch("causal_conv1d backward, states", initial_kernel<T, kWidth>,
               {ceil_div(args.states, kStateThreads), kStateThreads}, stream, args);
    });
  });
  OrderedSums ordered;  // [groups, taps and bias of each channel]
  const int64_t taps = size.width * size.channels, columns = taps + size.channels;
  if (g.weight)
    ordered.add(sum_of_columns(sums, plan.groups, columns, 0, taps, g.weight.as<float>()));
  if (g.bias)
    ordered.add(
        sum_of_columns(sums, plan.groups, columns, taps, size.channels, g.bias.as<float>()));
  launch_ordered_sums("causal_conv1d backward, sums", ordered, stream);
}

}  // namespace linescan
