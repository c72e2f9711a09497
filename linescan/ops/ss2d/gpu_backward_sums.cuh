// Where the backward kernel leaves sums that more than one block contributes to, and the kernels that
// add them up in a fixed order.
#pragma once

#include "linescan/ops/ss2d/gpu_channel_sums.cuh"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

// The gradient of the records, from each group of channels: [groups, slots, pixels, routes * record].
template <typename Number>
struct RecordSums {
  Number* data;
  int64_t slots;

  // Those of a block on one route.
  struct Route {
    Number* first;   // the record of the route's first step
    int line, step;  // bytes to the next line's, and the next step's

    __device__ __forceinline__ Number* at(int line_number, int position) const {
      return offset_bytes(offset_bytes(first, line_number, line), position, step);
    }
  };
  // Of the block's image and channels: the records of route k, from the first pixel on.
  template <typename T>
  __device__ __forceinline__ Number* of_block(const Ss2dGpuArguments<T>& args,
                                              const BlockPlace& place, int k) const {
    const int64_t pixels = static_cast<int64_t>(args.height) * args.width;
    return data + (place.group * slots + place.slot) * pixels * (args.routes * args.record) +
           k * args.record;
  }
  template <typename T>
  __device__ __forceinline__ Route route(const Ss2dGpuArguments<T>& args, const BlockPlace& place,
                                         const TileRoute& route, int k) const {
    const int record = args.routes * args.record;
    constexpr int kBytes = sizeof(Number);
    return {of_block(args, place, k) + int64_t{route.pixel_origin} * record,
            route.pixel_line * record * kBytes, route.pixel_step * record * kBytes};
  }
};

// Stores numbers kDepth * part + g and + 8, below `end`, of the records of product j: steps 2 j and
// 2 j + 1 of a segment of `valid` steps that begins at `position` of a line.
template <typename Number>
__device__ __forceinline__ void store_records(const typename RecordSums<Number>::Route& to,
                                              int line, int position, int valid, int part, int j,
                                              int end, const float (&record)[4]) {
  const int number = part * kDepth + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    Number* at = to.at(line, position + 2 * j + i) + number;
    const bool inside = 2 * j + i < valid;
    if (inside && number < end) at[0] = from_float<Number>(record[i]);
    if (inside && number + 8 < end) at[8] = from_float<Number>(record[2 + i]);
  }
}

// Stores the gradients of B and C of state n, summed over the channels by shuffles.
template <int kSteps>
__device__ __forceinline__ void store_factors(const RecordSums<float>::Route& to,
                                              const Segment<kSteps>& segment, int at_B, int at_C,
                                              const bool (&exists)[2], const StepValues& to_B,
                                              const StepValues& to_C) {
#pragma unroll
  for (int t = 0; t < kSteps; ++t) {
    float B = (exists[0] ? to_B[t][0] : 0.0f) + (exists[1] ? to_B[t][1] : 0.0f);
    float C = (exists[0] ? to_C[t][0] : 0.0f) + (exists[1] ? to_C[t][1] : 0.0f);
#pragma unroll
    for (int lanes = 4; lanes < 32; lanes *= 2) {
      B += __shfl_xor_sync(kAllLanes, B, lanes);
      C += __shfl_xor_sync(kAllLanes, C, lanes);
    }
    if (threadIdx.x % 32 < 4 && t < segment.valid) {
      float* record = to.at(segment.line, segment.position + t);
      record[at_B] = B;
      record[at_C] = C;
    }
  }
}

// The gradients of the parameters, from every warp: [slots, tiles, warps, routes, channels, numbers]
// with numbers = dt_weight [rank], A [states], dt_bias, D.
struct ParameterSums {
  float* data;
  int64_t warps;
  int rank;  // 0: dt_weight's gradient is found elsewhere
  bool add;  // to what an earlier slice of the batch left

  template <typename T>
  __host__ __device__ int numbers(const Ss2dGpuArguments<T>& args) const {
    return rank + args.states + 2;
  }

  // Those of one lane: of its two channels; lanes of one g share A, dt_bias and D.
  struct Place {
    float* data[2];
    int rank, states;
    bool add;

    __device__ __forceinline__ void put(float& sum, float value) const {
      sum = add ? sum + value : value;
    }

    // Columns 2q, 2q + 1 of the eight numbers from 8 * tile on; rows of channels 2g, 2g + 1.
    template <class Put>
    __device__ __forceinline__ void put_weights(int tile, const bool (&exists)[2],
                                                const float (&values)[4], const Put& put) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = 8 * tile + 2 * (threadIdx.x % 4) + (i & 1);
        if (r < rank && exists[i >> 1]) put(data[i >> 1][r], values[i]);
      }
    }
    __device__ __forceinline__ void store_weights(int tile, const bool (&exists)[2],
                                                  const float (&values)[4]) const {
      put_weights(tile, exists, values, [&](float& sum, float value) { put(sum, value); });
    }
    __device__ __forceinline__ void add_weights(int tile, const bool (&exists)[2],
                                                const float (&values)[4]) const {
      put_weights(tile, exists, values, [](float& sum, float value) { sum += value; });
    }
    // What add_weights and add_A add to.
    __device__ __forceinline__ void clear(const bool (&exists)[2]) const {
      if (add) return;
      for (int tile = 0; 8 * tile < rank; ++tile) store_weights(tile, exists, {});
      for (int i = 0; i < 2; ++i)
        if (exists[i] && threadIdx.x % 4 == 0)
          for (int n = 0; n < states; ++n) data[i][rank + n] = 0;
    }
    // All three of one state, a lane each: what is added to is read at once, and while the sums are made.
    __device__ __forceinline__ void store(const bool (&exists)[2], const float (&A)[2],
                                          const float (&bias)[2], const float (&D)[2]) const {
      const int q = threadIdx.x % 4;
      float before[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (add && exists[i] && q < 3) before[i] = data[i][rank + q];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sums[3] = {over_segments(A[i]), over_segments(bias[i]), over_segments(D[i])};
        if (exists[i] && q < 3)
          data[i][rank + q] = before[i] + (q == 0 ? sums[0] : q == 1 ? sums[1] : sums[2]);
      }
    }
    // Of a channel that exists: lanes of one g may take one each.
    __device__ __forceinline__ float* of_A(int i) const { return data[i] + rank; }
    __device__ __forceinline__ void add_A(int n, const bool (&exists)[2],
                                          const float (&values)[2]) const {
      for (int i = 0; i < 2; ++i) {
        const float sum = over_segments(values[i]);
        if (exists[i] && threadIdx.x % 4 == 0) data[i][rank + n] += sum;
      }
    }
    __device__ __forceinline__ void finish(const bool (&exists)[2], const float (&bias)[2],
                                           const float (&D)[2]) const {
      for (int i = 0; i < 2; ++i) {
        const float sums[2] = {over_segments(bias[i]), over_segments(D[i])};
        if (exists[i] && threadIdx.x % 4 == 0)
          for (int j = 0; j < 2; ++j) put(data[i][rank + states + j], sums[j]);
      }
    }
    __device__ __forceinline__ static float over_segments(float value) {
      value += __shfl_xor_sync(kAllLanes, value, 1);
      return value + __shfl_xor_sync(kAllLanes, value, 2);
    }
  };

  template <typename T>
  __device__ __forceinline__ Place place(const Ss2dGpuArguments<T>& args, const BlockPlace& block,
                                         int k, int warp, const int (&channel)[2]) const {
    const int64_t tile =
        (block.slot * args.tile_rows + block.tile_row) * args.tile_columns + block.tile_column;
    const int64_t row = ((tile * warps + warp) * args.routes + k) * args.channels;
    return {{data + (row + channel[0]) * numbers(args), data + (row + channel[1]) * numbers(args)},
            rank,
            args.states,
            add};
  }
};

// How the workspace of a backward pass is divided.
struct BackwardWorkspace {
  float *entering, *returning, *segments, *carries, *starts, *records, *weights, *parameters;

  BackwardWorkspace(const Ss2dSize& size, const Ss2dGpuPlan& plan, std::byte* workspace);
};

// gprojection = the sum over the groups of channels.
template <typename T, typename Number>
void sum_records(const Ss2dGpuArguments<T>& args, const RecordSums<Number>& sums, T* gprojection,
                 GpuStream stream);

// The parameters' gradients: the sums over `count` parts. Where `weights` [weight_parts, routes, channels, rank] is not null,
// that of dt_weight, of type T, is their sum.
template <typename T>
void sum_parameters(const Ss2dGpuArguments<T>& args, const ParameterSums& sums, int64_t count,
                    const float* weights, int64_t weight_parts, const Ss2dGradients& gradients,
                    GpuStream stream);

}  // namespace linescan
