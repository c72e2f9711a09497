// layer_norm, backward.
//
//   n = (x - mean) rstd     s = gout weight
//   gx = rstd (s - sum s / C - n sum (s n) / C) + skip
//   gweight = sum_rows gout n     gbias = sum_rows gout
//
//   x, gout, gx, skip [rows, C]   weight, gweight, gbias [C] float32   mean, rstd [rows] float32
//
// Numerics:  sums in float32. A block sums the rows that it visits, in their order; a second kernel
//            adds the blocks' sums in order. No atomics: two runs give the same bits.
// Reference: reference.cpp beside this file; bounds in tests/ops/layer_norm_gpu_test.cpp.
// Chosen by: gpu_plan.cpp, as in forward.cu.

#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/device_code/ordered_sums.h"
#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/layer_norm/layer_norm.h"
#include "linescan/ops/layer_norm/rows.cuh"

namespace linescan {
namespace {

template <typename In, typename Out>
struct BackwardArgs {
  const In* x;
  const Out* gout;
  const In* skip;       // null: none
  const float* weight;  // null: 1
  const float *mean, *rstd;
  In* gx;
  float* sums;  // [grid, 2, channels]: gradients of weight and bias; null: not wanted
  int64_t rows;
  int channels, lanes;
};

template <typename In, typename Out, int kVectors>
__global__ void __launch_bounds__(128) in_registers_kernel(BackwardArgs<In, Out> args) {
  const In* __restrict__ x = args.x;
  const Out* __restrict__ gout = args.gout;
  const In* __restrict__ skip = args.skip;
  In* __restrict__ gx = args.gx;
  const int lanes = args.lanes, lane = threadIdx.x % lanes;
  const int rows_a_block = blockDim.x / lanes;
  const float share = 1.f / args.channels;

  float weight[kVectors][kNormVector];
  float gweight[kVectors][kNormVector] = {}, gbias[kVectors][kNormVector] = {};
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int c = (v * lanes + lane) * kNormVector;
#pragma unroll
    for (int i = 0; i < kNormVector; ++i)
      weight[v][i] = args.weight && c < args.channels ? args.weight[c + i] : 1.f;
  }
  for (int64_t first = int64_t{blockIdx.x} * rows_a_block; first < args.rows;
       first += int64_t{gridDim.x} * rows_a_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const bool inside = row < args.rows;
    const float mean = inside ? args.mean[row] : 0.f, rstd = inside ? args.rstd[row] : 0.f;
    // What lies behind the row's end stays zero and adds nothing.
    float normal[kVectors][kNormVector] = {}, scaled[kVectors][kNormVector] = {};
    float sum = 0, slope = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = (v * lanes + lane) * kNormVector;
      if (!inside || c >= args.channels) continue;
      load_vector(x + row * args.channels + c, normal[v]);
      load_vector(gout + row * args.channels + c, scaled[v]);
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!inside || (v * lanes + lane) * kNormVector >= args.channels) continue;
#pragma unroll
      for (int i = 0; i < kNormVector; ++i) {
        const float gy = scaled[v][i];
        normal[v][i] = (normal[v][i] - mean) * rstd;
        gweight[v][i] += gy * normal[v][i];
        gbias[v][i] += gy;
        scaled[v][i] = gy * weight[v][i];
        sum += scaled[v][i];
        slope += scaled[v][i] * normal[v][i];
      }
    }
    sum = sum_lanes(sum, lanes) * share;
    slope = sum_lanes(slope, lanes) * share;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int c = (v * lanes + lane) * kNormVector;
      if (!inside || c >= args.channels) continue;
      float result[kNormVector] = {};
      if (skip) load_vector(skip + row * args.channels + c, result);
#pragma unroll
      for (int i = 0; i < kNormVector; ++i)
        result[i] += rstd * (scaled[v][i] - sum - normal[v][i] * slope);
      store_vector(result, gx + row * args.channels + c);
    }
  }
  if (!args.sums) return;

  // The block's rows side by side, a vector element at a time: [thread] for weight and bias.
  float* shared = reinterpret_cast<float*>(shared_memory());
  float* block_sums = args.sums + int64_t{blockIdx.x} * 2 * args.channels;
#pragma unroll
  for (int v = 0; v < kVectors; ++v)
#pragma unroll
    for (int i = 0; i < kNormVector; ++i) {
      __syncthreads();
      shared[threadIdx.x] = gweight[v][i];
      shared[blockDim.x + threadIdx.x] = gbias[v][i];
      __syncthreads();
      const int c = (v * lanes + lane) * kNormVector + i;
      const int part = threadIdx.x / lanes;  // 0: weight, 1: bias
      if (part >= 2 || c >= args.channels) continue;
      float total = 0;
      for (int other = lane; other < blockDim.x; other += lanes)
        total += shared[part * blockDim.x + other];
      block_sums[part * args.channels + c] = total;
    }
}

// One warp a row for the gradient of x.
template <typename In, typename Out>
__global__ void __launch_bounds__(128) from_memory_kernel(BackwardArgs<In, Out> args) {
  const int lane = threadIdx.x % 32;
  const float share = 1.f / args.channels;
  for (int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32; row < args.rows;
       row += int64_t{gridDim.x} * blockDim.x / 32) {
    const In* __restrict__ x = args.x + row * args.channels;
    const Out* __restrict__ gout = args.gout + row * args.channels;
    const float mean = args.mean[row], rstd = args.rstd[row];
    float sum = 0, slope = 0;
    for (int c = lane; c < args.channels; c += 32) {
      const float scaled = to_float(gout[c]) * (args.weight ? args.weight[c] : 1.f);
      sum += scaled;
      slope += scaled * (to_float(x[c]) - mean) * rstd;
    }
    sum = sum_lanes(sum, 32) * share;
    slope = sum_lanes(slope, 32) * share;
    for (int c = lane; c < args.channels; c += 32) {
      const float scaled = to_float(gout[c]) * (args.weight ? args.weight[c] : 1.f);
      const float normal = (to_float(x[c]) - mean) * rstd;
      const float add = args.skip ? to_float(args.skip[row * args.channels + c]) : 0.f;
      args.gx[row * args.channels + c] =
          from_float<In>(add + rstd * (scaled - sum - normal * slope));
    }
  }
}

// The sums for weight and bias of the rows that a block visits: a thread owns channels.
template <typename In, typename Out>
__global__ void __launch_bounds__(128) column_kernel(BackwardArgs<In, Out> args) {
  float* block_sums = args.sums + int64_t{blockIdx.x} * 2 * args.channels;
  for (int c = threadIdx.x; c < args.channels; c += blockDim.x) {
    float gweight = 0, gbias = 0;
    for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
      const float gy = to_float(args.gout[row * args.channels + c]);
      const float x = to_float(args.x[row * args.channels + c]);
      gweight += gy * (x - args.mean[row]) * args.rstd[row];
      gbias += gy;
    }
    block_sums[c] = gweight;
    block_sums[args.channels + c] = gbias;
  }
}

template <typename In, typename Out>
void launch_all(const BackwardArgs<In, Out>& args, const LayerNormGpuPlan& plan,
                const LayerNormGradients& g, GpuStream stream) {
  const LaunchShape shape = {plan.grid, static_cast<int>(plan.block), plan.shared_bytes};
  if (plan.vectors > 0) {
    dispatch_vectors(plan.vectors, [&]<int kVectors>() {
      launch("layer_norm backward", in_registers_kernel<In, Out, kVectors>, shape, stream, args);
    });
  } else {
    launch("layer_norm backward", from_memory_kernel<In, Out>, shape, stream, args);
    if (args.sums)
      launch("layer_norm backward, parameters", column_kernel<In, Out>, shape, stream, args);
  }
  if (!args.sums) return;
  OrderedSums ordered;  // [blocks, weight and bias of each channel]
  const int64_t columns = 2 * int64_t{args.channels};
  ordered.add(
      sum_of_columns(args.sums, plan.grid, columns, 0, args.channels, g.weight.as<float>()));
  if (g.bias)
    ordered.add(sum_of_columns(args.sums, plan.grid, columns, args.channels, args.channels,
                               g.bias.as<float>()));
  launch_ordered_sums("layer_norm backward, sums", ordered, stream);
}

}  // namespace

void backward(const LayerNormProblem& p, const LayerNormGradients& g, const LayerNormGpuPlan& plan,
              std::byte* workspace, GpuStream stream) {
  float* sums = g.weight ? reinterpret_cast<float*>(workspace) : nullptr;
  dispatch_data(p.x.dtype, [&]<typename In>() {
    dispatch_data(g.out.dtype, [&]<typename Out>() {
      launch_all(
          BackwardArgs<In, Out>{p.x.as<In>(), g.out.as<Out>(), g.skip.as<In>(),
                                p.weight.as<float>(), p.mean.as<float>(), p.rstd.as<float>(),
                                g.x.as<In>(), sums, p.x.shape[0], static_cast<int>(p.x.shape[1]),
                                static_cast<int>(plan.lanes)},
          plan, g, stream);
    });
  });
}

}  // namespace linescan
