// The convolution itself: depthwise_conv's forward pass, and with the weights turned round the last
// step of its backward pass.
//
//   sum[i, j] = bias + sum over di, dj of weight[di, dj] x[i + di - 1, j + dj - 1]
//   out = SiLU(sum), or sum
//
//   x, out [batch, height, width, channels]   weight [channels, 3, 3], bias [channels] float32
//
// A thread owns four channels (one vector access) of two rows and walks along the columns. What it
// reads is spent at once on the sums of three columns, so that every number is read twice (two of
// four rows are its neighbour's) and kept never.
#pragma once

#include "linescan/ops/depthwise_conv/strip.cuh"
#include "linescan/ops/device_code/softplus.cuh"

namespace linescan {

template <typename T>
struct ConvolveArgs {
  StripArgs strip;
  const T* x;
  const float *weight, *bias;  // no bias: null
  T* out;
  bool flip, silu;
};

template <typename T, int kVector>
__global__ void __launch_bounds__(256, 2) convolve_kernel(ConvolveArgs<T> args) {
  const StripArgs& cut = args.strip;
  const int channel = channel_of<kVector>(cut);
  const int64_t number = first_strip(cut);
  if (!takes_part(cut, channel) || number >= cut.strips) return;
  const Strip strip(cut, number, kConvRows);
  const int64_t offset = strip.image * cut.height * cut.width * cut.channels + channel;
  const T* __restrict__ x = args.x + offset;
  T* __restrict__ out = args.out + offset;

  float weight[9][kVector], bias[kVector];
  load_weights<kVector>(args.weight, channel, args.flip, weight);
#pragma unroll
  for (int c = 0; c < kVector; ++c) bias[c] = args.bias ? args.bias[channel + c] : 0.f;

  // Sums of the columns left of, at and right of the column that is read.
  float left[kConvRows][kVector], middle[kConvRows][kVector], right[kConvRows][kVector];
#pragma unroll
  for (int r = 0; r < kConvRows; ++r)
#pragma unroll
    for (int c = 0; c < kVector; ++c) left[r][c] = middle[r][c] = bias[c];

  Columns<T, kVector, kConvRows + 2> columns(shared_memory());
  const int first = strip.begin - 1, count = strip.end - first + 1;
  const auto order = [&](int place) {
    if (place < count) columns.start(x, cut, strip.row - 1, first + place, place);
    commit_copies();
  };
  for (int place = 0; place < kConvAhead - 1; ++place) order(place);
#pragma unroll 3
  for (int place = 0; place < count; ++place) {
    wait_copies<kConvAhead - 2>();
    Pack<T, kVector> now[kConvRows + 2];
#pragma unroll
    for (int i = 0; i < kConvRows + 2; ++i) now[i] = columns.get(place, i);
    order(place + kConvAhead - 1);
#pragma unroll
    for (int r = 0; r < kConvRows; ++r)
#pragma unroll
      for (int c = 0; c < kVector; ++c) right[r][c] = bias[c];
#pragma unroll
    for (int i = 0; i < kConvRows + 2; ++i)
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        const float value = to_float(now[i].values[c]);
#pragma unroll
        for (int r = 0; r < kConvRows; ++r) {
          const int di = i - r;  // the row of the weight through which r sees i
          if (di < 0 || di > 2) continue;
          left[r][c] = fmaf(weight[3 * di + 2][c], value, left[r][c]);
          middle[r][c] = fmaf(weight[3 * di + 1][c], value, middle[r][c]);
          right[r][c] = fmaf(weight[3 * di][c], value, right[r][c]);
        }
      }
    if (place >= 2) {  // the column before the last has all its neighbours
#pragma unroll
      for (int r = 0; r < kConvRows; ++r) {
        if (strip.row + r >= cut.height) continue;
        Pack<T, kVector> result;
#pragma unroll
        for (int c = 0; c < kVector; ++c) {
          const float sum = left[r][c];
          result.values[c] = from_float<T>(args.silu ? sum * sigmoid(sum) : sum);
        }
        *reinterpret_cast<Pack<T, kVector>*>(
            out + (int64_t{strip.row + r} * cut.width + first + place - 1) * cut.channels) = result;
      }
    }
#pragma unroll
    for (int r = 0; r < kConvRows; ++r)
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
        left[r][c] = middle[r][c];
        middle[r][c] = right[r][c];
      }
  }
}

template <typename T>
void launch_convolve(const char* what, const ConvolveArgs<T>& args, const ConvStrips& cut,
                     GpuStream stream) {
  const LaunchShape shape = {cut.strips == 0 ? 0 : cut.grid(), static_cast<int>(cut.block),
                             cut.shared_bytes};
  dispatch_channels(cut.vector, [&]<int kVector>() {
    launch(what, convolve_kernel<T, kVector>, shape, stream, args);
  });
}

}  // namespace linescan
