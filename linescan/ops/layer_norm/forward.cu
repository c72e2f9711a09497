// layer_norm, forward.
//
//   mean = sum x / C     rstd = (sum (x - mean)^2 / C + epsilon)^-1/2
//   out  = (x - mean) rstd weight + bias
//
//   x, out [rows, C]   weight, bias [C] float32   mean, rstd [rows] float32
//
// Numerics:  two passes over the row, in float32; out is rounded once.
// Reference: reference.cpp beside this file; bounds in tests/ops/layer_norm_gpu_test.cpp.
// Chosen by: gpu_plan.cpp. "in registers" where a few lanes hold the row, so that memory is read
//            once; "from memory" for every other width and for addresses that are not aligned.

#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/layer_norm/layer_norm.h"
#include "linescan/ops/layer_norm/rows.cuh"

namespace linescan {
namespace {

template <typename In, typename Out>
struct ForwardArgs {
  const In* x;
  const float *weight, *bias;  // null: 1, 0
  Out* out;
  float *mean, *rstd;
  int64_t rows;
  int channels, lanes;
  float epsilon;
};

template <typename In, typename Out, int kVectors>
__global__ void __launch_bounds__(128) in_registers_kernel(ForwardArgs<In, Out> args) {
  const In* __restrict__ x = args.x;
  Out* __restrict__ out = args.out;
  const int lanes = args.lanes, lane = threadIdx.x % lanes;
  const int rows_a_block = blockDim.x / lanes;
  const float share = 1.f / args.channels;

  // Vectors of a row go round the lanes, so that neighbours read neighbouring addresses.
  float weight[kVectors][kNormVector], bias[kVectors][kNormVector];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = (v * lanes + lane) * kNormVector;
#pragma unroll
    for (int i = 0; i < kNormVector; ++i) {
      weight[v][i] = args.weight && c < args.channels ? args.weight[c + i] : 1.f;
      bias[v][i] = args.bias && c < args.channels ? args.bias[c + i] : 0.f;
    }
  }
  // All lanes of a warp take part in its sums, also those whose row is behind the last.
  for (int64_t first = int64_t{blockIdx.x} * rows_a_block; first < args.rows;
       first += int64_t{gridDim.x} * rows_a_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const bool inside = row < args.rows;
    float values[kVectors][kNormVector] = {}, sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = (v * lanes + lane) * kNormVector;
      if (inside && c < args.channels) load_vector(x + row * args.channels + c, values[v]);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v)
#pragma unroll
      for (int i = 0; i < kNormVector; ++i) sum += values[v][i];
    const float mean = sum_lanes(sum, lanes) * share;
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if ((v * lanes + lane) * kNormVector >= args.channels) continue;
#pragma unroll
      for (int i = 0; i < kNormVector; ++i) {
        values[v][i] -= mean;
        squares += values[v][i] * values[v][i];
      }
    }
    const float rstd = rsqrtf(sum_lanes(squares, lanes) * share + args.epsilon);
    if (!inside) continue;
    if (lane == 0) {
      args.mean[row] = mean;
      args.rstd[row] = rstd;
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = (v * lanes + lane) * kNormVector;
      if (c >= args.channels) continue;
#pragma unroll
      for (int i = 0; i < kNormVector; ++i)
        values[v][i] = values[v][i] * rstd * weight[v][i] + bias[v][i];
      store_vector(values[v], out + row * args.channels + c);
    }
  }
}

// One warp a row; the second and third look at the row come from the cache.
template <typename In, typename Out>
__global__ void __launch_bounds__(128) from_memory_kernel(ForwardArgs<In, Out> args) {
  const int lane = threadIdx.x % 32;
  const float share = 1.f / args.channels;
  for (int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; row < args.rows;
       row += int64_t{gridDim.x} * blockDim.x / 32) {
    const In* __restrict__ x = args.x + row * args.channels;
    Out* __restrict__ out = args.out + row * args.channels;
    float sum = 0, squares = 0;
    for (int c = lane; c < args.channels; c += 32) sum += to_float(x[c]);
    const float mean = sum_lanes(sum, 32) * share;
    for (int c = lane; c < args.channels; c += 32) {
      const float centred = to_float(x[c]) - mean;
      squares += centred * centred;
    }
    const float rstd = rsqrtf(sum_lanes(squares, 32) * share + args.epsilon);
    if (lane == 0) {
      args.mean[row] = mean;
      args.rstd[row] = rstd;
    }
    for (int c = lane; c < args.channels; c += 32)
      out[c] =
          from_float<Out>((to_float(x[c]) - mean) * rstd * (args.weight ? args.weight[c] : 1.f) +
                          (args.bias ? args.bias[c] : 0.f));
  }
}

}  // namespace

void forward(const LayerNormProblem& p, const LayerNormGpuPlan& plan, std::byte*,
             GpuStream stream) {
  const LaunchShape shape = {plan.grid, static_cast<int>(plan.block), plan.shared_bytes};
  dispatch_data(p.x.dtype, [&]<typename In>() {
    dispatch_data(p.out.dtype, [&]<typename Out>() {
      const ForwardArgs<In, Out> args = {p.x.as<In>(),
                                         p.weight.as<float>(),
                                         p.bias.as<float>(),
                                         p.out.as<Out>(),
                                         p.mean.as<float>(),
                                         p.rstd.as<float>(),
                                         p.x.shape[0],
                                         static_cast<int>(p.x.shape[1]),
                                         static_cast<int>(plan.lanes),
                                         static_cast<float>(p.epsilon)};
      if (plan.vectors == 0)
        return launch("layer_norm from memory", from_memory_kernel<In, Out>, shape, stream, args);
      dispatch_vectors(plan.vectors, [&]<int kVectors>() {
        launch("layer_norm in registers", in_registers_kernel<In, Out, kVectors>, shape, stream,
               args);
      });
    });
  });
}

}  // namespace linescan
