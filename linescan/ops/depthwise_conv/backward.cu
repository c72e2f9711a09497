// depthwise_conv, backward, in three launches.
//
//   sum = bias + conv(x, weight), computed again     ga = gout SiLU'(sum), or gout
//   gweight[di, dj] = sum over pixels of ga[i, j] x[i + di - 1, j + dj - 1]     gbias = sum ga
//   gx = conv(ga, weight turned round)
//
//   x, gout, ga, gx [batch, height, width, channels]   gweight [channels, 3, 3], gbias [channels]
//
// The first makes ga and each block's sums for weight and bias, the second adds these up in order,
// the third is convolve.cuh: x and gout are read once, ga written and read once.
//
// Numerics:  sums in float32, no atomics: two runs give the same bits. ga goes through memory in x's
//            type; the sums take it unrounded.
// Reference: reference.cpp beside this file; bounds in tests/ops/depthwise_conv_gpu_test.cpp.

#include "linescan/ops/depthwise_conv/convolve.cuh"
#include "linescan/ops/depthwise_conv/depthwise_conv.h"
#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/device_code/ordered_sums.h"

namespace linescan {
namespace {

template <typename T>
struct SumsArgs {
  StripArgs strip;
  const T *x, *gout;
  const float *weight, *bias;  // no bias: null
  T* ga;                       // null: no activation
  float* sums;                 // [groups, 10 channels]: weight [channels, 9], then bias
};

// What a thread gathers over all of its strips, [tap or bias][channel of the thread].
template <int kVector>
struct Gathered {
  float of[10][kVector] = {};
};

template <typename T, int kVector>
__device__ __forceinline__ void walk(const SumsArgs<T>& args, const Strip& strip, int channel,
                                     const float (&weight)[9][kVector],
                                     const float (&bias)[kVector], Gathered<kVector>& gathered) {
  const StripArgs& cut = args.strip;
  const int64_t offset = strip.image * cut.height * cut.width * cut.channels + channel;
  const T* __restrict__ x = args.x + offset;
  const T* __restrict__ gout = args.gout + offset;

  float window[3][3][kVector] = {};  // [column][row]: the neighbours of the pixel at hand
  Columns<T, kVector, 3> columns(shared_memory());
  Columns<T, kVector, 1> upstream(shared_memory() +
                                  kConvAhead * 3 * blockDim.x * sizeof(Pack<T, kVector>));
  // With the gradient of a pixel comes the column right of it.
  const int first = strip.begin - 1, count = strip.end - first + 1;
  const auto order = [&](int place) {
    if (place < count) {
      columns.start(x, cut, strip.row - 1, first + place, place);
      upstream.start(gout, cut, strip.row, first + place - 1, place);
    }
    commit_copies();
  };
  for (int place = 0; place < kConvAhead - 1; ++place) order(place);

#pragma unroll 1  // three columns at once spill
  for (int place = 0; place < count; ++place) {
    wait_copies<kConvAhead - 2>();
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const Pack<T, kVector> now = columns.get(place, i);
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        window[0][i][c] = window[1][i][c];
        window[1][i][c] = window[2][i][c];
        window[2][i][c] = to_float(now.values[c]);
      }
    }
    const Pack<T, kVector> gy = upstream.get(place, 0);
    order(place + kConvAhead - 1);
    if (place < 2) continue;
    const int column = first + place - 1;
    Pack<T, kVector> result = {};
#pragma unroll
    for (int c = 0; c < kVector; ++c) {
      float gradient = to_float(gy.values[c]);
      if (args.ga) {
        float sum = bias[c];
#pragma unroll
        for (int tap = 0; tap < 9; ++tap)
          sum = fmaf(weight[tap][c], window[tap % 3][tap / 3][c], sum);
        const float s = sigmoid(sum);
        gradient *= s * fmaf(sum, 1.f - s, 1.f);
        result.values[c] = from_float<T>(gradient);
      }
#pragma unroll
      for (int tap = 0; tap < 9; ++tap)
        gathered.of[tap][c] = fmaf(gradient, window[tap % 3][tap / 3][c], gathered.of[tap][c]);
      gathered.of[9][c] += gradient;
    }
    if (args.ga)
      *reinterpret_cast<Pack<T, kVector>*>(
          args.ga + offset + (int64_t{strip.row} * cut.width + column) * cut.channels) = result;
  }
}

template <typename T, int kVector>
__global__ void __launch_bounds__(128, 3) sums_kernel(SumsArgs<T> args) {
  const StripArgs& cut = args.strip;
  const int channel = channel_of<kVector>(cut);
  const bool takes = takes_part(cut, channel);
  Gathered<kVector> gathered;
  if (takes) {
    float weight[9][kVector], bias[kVector];
    load_weights<kVector>(args.weight, channel, /*flip=*/false, weight);
#pragma unroll
    for (int c = 0; c < kVector; ++c) bias[c] = args.bias ? args.bias[channel + c] : 0.f;
    for (int64_t number = first_strip(cut); number < cut.strips;
         number += int64_t{cut.groups} * cut.strips_a_block)
      walk(args, Strip(cut, number, 1), channel, weight, bias, gathered);
  }

  // The block's strips are added up in order, one of the ten at a time.
  float* shared = reinterpret_cast<float*>(shared_memory());  // [strip, pack, channel of the pack]
  float* sums = args.sums + int64_t{blockIdx.x / cut.chunks} * 10 * cut.channels;
  const int columns = cut.packs_a_block * kVector;
  const int first_channel = blockIdx.x % cut.chunks * columns;
#pragma unroll
  for (int which = 0; which < 10; ++which) {
    __syncthreads();
    if (threadIdx.x / cut.packs_a_block < cut.strips_a_block)
#pragma unroll
      for (int c = 0; c < kVector; ++c) shared[threadIdx.x * kVector + c] = gathered.of[which][c];
    __syncthreads();
    for (int place = threadIdx.x; place < columns; place += blockDim.x) {
      const int c = first_channel + place;
      if (c >= cut.channels) continue;
      float total = 0;
      for (int strip = 0; strip < cut.strips_a_block; ++strip)
        total += shared[strip * columns + place];
      sums[which < 9 ? c * 9 + which : 9 * cut.channels + c] = total;
    }
  }
}

}  // namespace

void backward(const DepthwiseConvProblem& p, const DepthwiseConvGradients& g,
              const DepthwiseConvGpuPlan& plan, std::byte* workspace, GpuStream stream) {
  float* sums = reinterpret_cast<float*>(workspace + plan.activation_bytes);
  const int64_t channels = p.x.shape[3];
  dispatch_data(p.x.dtype, [&]<typename T>() {
    T* ga = p.silu ? reinterpret_cast<T*>(workspace) : nullptr;
    const SumsArgs<T> args = {strip_args(p.x.shape, plan.sums),
                              p.x.as<T>(),
                              g.out.as<T>(),
                              p.weight.as<float>(),
                              p.bias.as<float>(),
                              ga,
                              sums};
    const LaunchShape shape = {plan.sums.grid(), static_cast<int>(plan.sums.block),
                               plan.sums.shared_bytes};
    dispatch_channels(plan.sums.vector, [&]<int kVector>() {
      launch("depthwise_conv backward, sums", sums_kernel<T, kVector>, shape, stream, args);
    });
    OrderedSums ordered;  // [groups, 9 taps and the bias of each channel]
    ordered.add(sum_of_columns(sums, plan.sums.groups, 10 * channels, 0, 9 * channels,
                               g.weight.as<float>()));
    if (g.bias)
      ordered.add(sum_of_columns(sums, plan.sums.groups, 10 * channels, 9 * channels, channels,
                                 g.bias.as<float>()));
    launch_ordered_sums("depthwise_conv backward, order", ordered, stream);
    const ConvolveArgs<T> turned = {strip_args(p.x.shape, plan.convolution),
                                    ga ? ga : g.out.as<T>(),
                                    p.weight.as<float>(),
                                    nullptr,
                                    g.x.as<T>(),
                                    /*flip=*/true,
                                    /*silu=*/false};
    launch_convolve("depthwise_conv backward, x", turned, plan.convolution, stream);
  });
}

}  // namespace linescan
