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

// Tokens whose loads a thread has under way at once.
constexpr int kTokensAhead = 4;

// Neighbouring channels of the tokens from `at` on, `step` numbers apart; none behind the `count`-th.
template <typename Numbers, typename T>
__device__ __forceinline__ void read_tokens(Numbers (&tokens)[kTokensAhead], const T* at,
                                            int64_t step, int64_t count) {
#pragma unroll
  for (int i = 0; i < kTokensAhead; ++i)
    if (i < count) tokens[i] = *reinterpret_cast<const Numbers*>(at + i * step);
}

// What a thread has of the last kWidth tokens of a sequence: inputs, and gradients of the sums.
template <typename T, int kVector, int kWidth>
struct Window {
  using Numbers = Pack<T, kVector>;
  const ConvWeights<kVector, kWidth>& weights;
  bool silu;
  float taps[kWidth][kVector], ga[kWidth][kVector] = {};

  __device__ __forceinline__ Window(const ConvWeights<kVector, kWidth>& weights, bool silu)
      : weights(weights), silu(silu) {}

  // Moves on by a token of the sequence, one of the run's own if there is somebody to gather.
  __device__ __forceinline__ void take(const Numbers& input, const Numbers& gradient,
                                       Gathered<kVector, kWidth>* gathered) {
    shift(taps);
    shift(ga);
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      taps[kWidth - 1][c] = to_float(input.values[c]);
      float g = to_float(gradient.values[c]);
      if (silu) g = through_silu(g, weights.sum(taps, c));
      ga[kWidth - 1][c] = g;
      if (gathered == nullptr) continue;
      gathered->bias[c] += g;
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap)
        gathered->weight[tap][c] = fmaf(g, taps[tap][c], gathered->weight[tap][c]);
    }
  }
  // Moves on behind the end of the sequence.
  __device__ __forceinline__ void take_nothing() {
    shift(ga);
#pragma unroll
    for (int c = 0; c < kVector; ++c) ga[kWidth - 1][c] = 0.f;
  }
  // The gradient of the oldest token's input, besides `more`.
  __device__ __forceinline__ Numbers oldest(const float (&more)[kVector]) const {
    Numbers result;
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      float total = more[c];
#pragma unroll
      for (int tap = 0; tap < kWidth; ++tap)
        total = fmaf(weights.weight[kWidth - 1 - tap][c], ga[tap][c], total);
      result.values[c] = from_float<T>(total);
    }
    return result;
  }
};

// Tokens first .. stop - 1 of sequence s.
template <typename T, int kVector, int kWidth>
__device__ __forceinline__ void walk(const BackwardArgs<T>& args,
                                     const ConvWeights<kVector, kWidth>& weights,
                                     const ConvSequence& s, int64_t item, int64_t first,
                                     int64_t stop, int channel,
                                     Gathered<kVector, kWidth>& gathered) {
  using Numbers = Pack<T, kVector>;
  constexpr int kBehind = kWidth - 1;  // tokens until an input's gradient is whole
  const ConvTokens<T>& in = args.in;
  const int64_t x_step = in.x.strides[1], gout_step = args.gout.strides[1],
                gx_step = args.gx.strides[1];
  const T* __restrict__ x = in.x.at(item, first, channel);
  const T* __restrict__ gout = args.gout.data ? args.gout.at(item, first, channel) : nullptr;
  T* __restrict__ gx = args.gx.at(item, first, channel);
  Window<T, kVector, kWidth> window(weights, in.silu);
  in.fill(window.taps, s, item, first, channel);
  constexpr float kNothing[kVector] = {};

  Numbers input[kTokensAhead], gradient[kTokensAhead] = {};
  const auto read = [&](int64_t count) {
    read_tokens(input, x, x_step, count);
    if (gout) read_tokens(gradient, gout, gout_step, count);
  };
  int64_t left = stop - first;
  const int lead = static_cast<int>(min(int64_t{kBehind}, left));
  read(lead);
#pragma unroll
  for (int i = 0; i < kBehind; ++i)
    if (i < lead) window.take(input[i], gradient[i], &gathered);
  const auto advance = [&](int64_t tokens) {
    x += tokens * x_step;
    if (gout) gout += tokens * gout_step;
    left -= tokens;
  };
  advance(lead);
  while (left > 0) {
    const int count = static_cast<int>(min(int64_t{kTokensAhead}, left));
    read(count);
#pragma unroll
    for (int i = 0; i < kTokensAhead; ++i) {
      if (i >= count) break;
      window.take(input[i], gradient[i], &gathered);
      *reinterpret_cast<Numbers*>(gx) = window.oldest(kNothing);
      gx += gx_step;
    }
    advance(count);
  }

  // Behind the run: tokens of the sequence that its last ones have reached, or the final state.
  const int behind = static_cast<int>(min(int64_t{kBehind}, s.end - stop));
  read(behind);
#pragma unroll
  for (int i = 0; i < kBehind; ++i) {
    if (i < behind)
      window.take(input[i], gradient[i], nullptr);
    else
      window.take_nothing();
    const int64_t done = stop + i - kBehind;
    if (done < first) continue;
    const int64_t place = done - (s.end - kBehind);  // in the final state
    float more[kVector] = {};
    if (args.gfinal.data && place >= 0)
#pragma unroll
      for (int c = 0; c < kVector; ++c)
        more[c] = to_float(*args.gfinal.at(s.number, channel + c, place));
    *reinterpret_cast<Numbers*>(gx) = window.oldest(more);
    gx += gx_step;
  }
}

template <typename T, int kVector, int kWidth>
__global__ void __launch_bounds__(128, kWidth > 2 ? 3 : 4) backward_kernel(BackwardArgs<T> args) {
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
