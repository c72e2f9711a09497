// Sums over the 16 channels of a block, by matrix products: what lanes hold for channels and steps
// becomes the gradient of records, weights become rows.
//
// The packed kernels round gradients of half data to its type on the way, as any library's matrix product of
// them would do; the general one multiplies them as float32.
#pragma once

#include "linescan/ops/ss2d/gpu_chunk.cuh"

namespace linescan {

// A number of each step of a segment for channels 2g and 2g + 1; steps behind its last one are padding.
using StepValues = float[2 * kGpuProducts][2];

// Channel, within the block, of row `row` of a chunk's matrices.
__device__ __forceinline__ int row_channel(int row) { return 2 * (row & 7) + (row >> 3); }

// c += A V: V [16 channels, 8 columns] are the values of one product's columns, two steps of a lane.
__device__ __forceinline__ void add_channel_product(float (&c)[4], const FragmentA<float>& a,
                                                    const float (*values)[2]) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  FragmentB<float> b;
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // row 2q + .. of column g, from the lane that holds it
    const int row = fragment_k(q, i), source = (row & 7) * 4 + g / 2;
    const float even = __shfl_sync(kAllLanes, values[0][i >> 1], source);
    const float odd = __shfl_sync(kAllLanes, values[1][i >> 1], source);
    b.values[i] = g % 2 == 0 ? even : odd;
  }
  multiply(c, a, b, c);
}
// Row m of part `part` of dt_weight, transposed: number part * kDepth + m of a record from channels.
template <typename Number, typename T>
__device__ __forceinline__ FragmentA<Number> weight_columns(const Ss2dGpuArguments<T>& args,
                                                            const BlockPlace& place, int k,
                                                            int part) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  FragmentA<Number> result;
  result.fill([&](int row, int i) {
    const int r = part * kDepth + g + 8 * row;
    const int channel = place.group * kGpuChannels + row_channel(fragment_k(q, i));
    if (channel >= args.channels || r >= args.rank) return 0.0f;
    const int64_t at = (static_cast<int64_t>(k) * args.channels + channel) * args.rank + r;
    return args.float_weight ? args.float_weight[at] : to_float(args.dt_weight[at]);
  });
  return result;
}

// c += V R^T: values times the records' numbers, summed over the lane group's steps: rows of channels,
// columns of the eight numbers from 8 * tile on.
template <typename T, int kSteps>
__device__ __forceinline__ void multiply_by_records(float (&c)[4], const StepValues& values,
                                                    const LaneRoute<T, kSteps>& lane,
                                                    const Segment<kSteps>& segment, int tile) {
#pragma unroll
  for (int pair = 0; pair < kGpuProducts / 2; ++pair) {
    FragmentA<float> steps;
    steps.fill([&](int row, int k) { return values[4 * pair + k][row]; });
    FragmentB<float> numbers;
    numbers.fill(
        [&](int k) { return lane.record_number(segment, 4 * pair + k, 8 * tile + lane.g); });
    multiply(c, steps, numbers, c);
  }
}

}  // namespace linescan
