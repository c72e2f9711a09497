// What the packed backward kernels share: the way back through a segment, and what becomes of the gradients of
// delta, B and C on it.
#pragma once

#include "linescan/ops/device_code/predicated.cuh"
#include "linescan/ops/ss2d/gpu_backward.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"

namespace linescan {

// Whether the packed kernels can read and write the gradients of a problem whose data is as they want it.
template <typename T>
bool packed_gradients(const BackwardArguments<T>& args) {
  return packed_pairs(args.gx, 2, args.width) &&
         reinterpret_cast<std::uintptr_t>(args.gprojection) % 4 == 0 &&
         int64_t{args.width} * args.channel_groups * kGpuChannels < int64_t{1} << 27 &&
         (args.gout_dtype == kDTypeOf<T> || args.gout_dtype == DType::kFloat32) &&
         packed_pairs(args.gout, size_of(args.gout_dtype), args.width);
}

// Rows of ones that pick sums over the block's channels: the first eight of the depth are pairs of channels'
// numbers for B, the others for C; their sums become rows `row_B` and `row_C`.
template <typename T>
__device__ __forceinline__ FragmentA<T> channel_ones(const Ss2dGpuArguments<T>& args,
                                                     const BlockPlace& place, int row_B,
                                                     int row_C) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const auto pair = [&](int i) {
    const int first = place.group * kGpuChannels + 4 * q + 2 * i;
    return first < args.channels ? 1.0f : 0.0f;
  };
  const uint32_t word = pair_from_floats<T>(pair(0), pair(1));
  FragmentA<T> ones;
#pragma unroll
  for (int i = 0; i < 4; ++i)  // rows g, g + 8 of the first eight; of the others
    ones.words[i] = g + 8 * (i & 1) == (i < 2 ? row_B : row_C) ? word : 0u;
  return ones;
}
// The operand beside them: a lane's numbers for B and C at two steps, sums over its two channels.
template <typename T>
__device__ __forceinline__ FragmentB<T> channel_pairs(const float (&to_B)[2],
                                                      const float (&to_C)[2]) {
  return {{transpose_8x8(pair_from_floats<T>(to_B[0], to_B[1])),
           transpose_8x8(pair_from_floats<T>(to_C[0], to_C[1]))}};
}

// dt_weight of the block's channels, transposed, of up to eight dts: without branches, whose loads would wait for each other.
template <typename T>
__device__ __forceinline__ FragmentA<T> few_weight_columns(const Ss2dGpuArguments<T>& args,
                                                           const BlockPlace& place, int k) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4, q = static_cast<int>(threadIdx.x) % 4;
  const T* const first =
      args.dt_weight + static_cast<int64_t>(k) * args.channels * args.rank + min(g, args.rank - 1);
  const auto pair = [&](int i) {  // of columns i and i + 1 of the lane
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int channel = place.group * kGpuChannels + row_channel(fragment_k(q, i + j));
      const uint32_t bits = __ldg(reinterpret_cast<const uint16_t*>(first) +
                                  min(channel, args.channels - 1) * args.rank);
      word |= channel < args.channels && g < args.rank ? bits << (16 * j) : 0u;
    }
    return word;
  };
  return {{pair(0), 0, pair(2), 0}};
}

// The gradient of delta multiplied on the chip, where dt_weight has up to eight columns: by dt_weight transposed, which gives that
// of dts from the block's channels, eight numbers by eight columns a product; and by dts, which gives that of dt_weight.
template <typename T>
struct MultipliedDelta {
  FragmentA<T> weights;
  uint32_t rows[kGpuProducts];      // of the records: numbers are columns of a sum over the steps
  uint32_t steps[kGpuProducts][2];  // gdelta of a product's two steps, for either channel
  float g_weight[4] = {};

  __device__ __forceinline__ explicit MultipliedDelta(const FragmentA<T>& weights)
      : weights(weights) {}
  __device__ __forceinline__ MultipliedDelta(const BackwardArguments<T>& args,
                                             const BlockPlace& place, int k)
      : weights(few_weight_columns<T>(args, place, k)) {}
  // The lane's row of the products: a number of the record.
  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) % 32 / 4; }
  __device__ __forceinline__ void start_chunk(const RecordColumns<T, 1>& records) {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) rows[j] = transpose_8x8(records.words[j][0]);
  }
  // Of the steps 2 j and 2 j + 1, g_delta [step, channel]: the lane's number at either, product[0] and [1].
  __device__ __forceinline__ void take(int j, const float (&g_delta)[2][2], float (&product)[4]) {
    for (int i = 0; i < 2; ++i) steps[j][i] = pair_from_floats<T>(g_delta[0][i], g_delta[1][i]);
    const FragmentB<T> deltas = {{transpose_8x8(steps[j][0]), transpose_8x8(steps[j][1])}};
    multiply(product, weights, deltas, product);
  }
  __device__ __forceinline__ void finish_chunk() {  // sums over the steps
#pragma unroll
    for (int pair = 0; pair < kGpuProducts / 2; ++pair) {
      const FragmentA<T> left = {
          {steps[2 * pair][0], steps[2 * pair][1], steps[2 * pair + 1][0], steps[2 * pair + 1][1]}};
      multiply(g_weight, left, {{rows[2 * pair], rows[2 * pair + 1]}}, g_weight);
    }
  }
};

// What becomes of the gradients of delta, B and C. Of records of up to eight numbers, on planes of several tiles:
// multiplied on the chip, B's and C's by ones.
template <typename T>
struct MultipliedGradients {
  MultipliedDelta<T> delta;
  FragmentA<T> ones;
  PlaneWalk<T>
      walk;     // of the records' sums, from the number that is the lane's row of the products
  T* at;        // of the segment's first step
  int step;     // bytes from step to step
  bool stores;  // whether there is such a number

  __device__ __forceinline__ MultipliedGradients(const BackwardArguments<T>& args,
                                                 const BlockPlace& place, const TileRoute& route,
                                                 int k)
      : delta(args, place, k),
        ones(channel_ones(args, place, args.rank, args.rank + 1)),
        walk(args.packed_record_sums.of_block(args, place, k) + delta.row(),
             int64_t{args.routes} * args.record, route),
        stores(delta.row() < args.record) {}
  __device__ __forceinline__ void start_chunk(const RecordColumns<T, 1>& records) {
    delta.start_chunk(records);
  }
  // To a segment that begins so many pixels behind the route's first step.
  __device__ __forceinline__ void start_walk(const TileRoute& route, int pixels) {
    at = walk.at(pixels);
    step = walk.step(route);
  }
  // Of the steps 2 j and 2 j + 1: g_delta [step, channel], and sums over the lane's two channels.
  __device__ __forceinline__ void take(int j, int valid, const float (&g_delta)[2][2],
                                       const float (&to_B)[2], const float (&to_C)[2]) {
    float product[4] = {};
    delta.take(j, g_delta, product);
    multiply(product, ones, channel_pairs<T>(to_B, to_C), product);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * j + i;
      store_if(t < valid && stores, offset_bytes(at, t, step), from_float<T>(product[i]));
    }
  }
  __device__ __forceinline__ void finish_chunk() { delta.finish_chunk(); }
  __device__ __forceinline__ void finish_route(const ParameterSums::Place& to,
                                               const bool (&exists)[2]) const {
    to.store_weights(0, exists, delta.g_weight);
  }
};

// Where the gradient of delta of a lane's channels is stored on a route (gpu_delta_gradient.cuh).
template <typename T>
struct StoredDelta {
  PlaneWalk<T> walk;
  bool inside;  // whether the lane's channels exist: zero where they do not
  T* at;        // of the segment's first step
  int step;     // bytes from step to step

  __device__ __forceinline__ StoredDelta(const BackwardArguments<T>& args, const BlockPlace& place,
                                         const TileRoute& route, int k)
      : walk(args.delta_gradient.of_block(place, k) + 2 * (static_cast<int>(threadIdx.x) % 32 / 4),
             args.delta_gradient.channels(), route),
        inside(place.group * kGpuChannels + 2 * (static_cast<int>(threadIdx.x) % 32 / 4) <
               args.channels) {}
  // To a segment that begins so many pixels behind the route's first step.
  __device__ __forceinline__ void start_walk(const TileRoute& route, int pixels) {
    at = walk.at(pixels);
    step = walk.step(route);
  }
  __device__ __forceinline__ void store(int t, int valid, const float (&g_delta)[2]) const {
    const uint32_t deltas = inside ? pair_from_floats<T>(g_delta[0], g_delta[1]) : 0u;
    store_if(t < valid, reinterpret_cast<uint32_t*>(offset_bytes(at, t, step)), deltas);
  }
};

// Of other records, and on planes of one tile: stored, B's and C's as sums over the block's channels.
template <typename T, int kHalves, int kSteps = kGpuSegmentSteps>
struct StoredGradients {
  uint32_t one;  // in the first row of B's depth, and in the last eight rows' first of C's
  StoredDelta<T> delta;
  PlaneWalk<uint32_t> factor_walk;
  uint32_t* factors_at;  // of the segment's first step
  int factor_step;       // bytes from step to step

  __device__ __forceinline__ StoredGradients(const BackwardArguments<T>& args,
                                             const BlockPlace& place, const TileRoute& route, int k)
      : one(channel_ones(args, place, 0, kDepth / 2).words[0]),
        delta(args, place, route, k),
        factor_walk(args.delta_gradient.factors_of_block(place, k), 1, route) {}
  __device__ __forceinline__ void start_chunk(const RecordColumns<T, kHalves>&) {}
  __device__ __forceinline__ void start_walk(const TileRoute& route, int pixels) {
    delta.start_walk(route, pixels);
    factors_at = factor_walk.at(pixels);
    factor_step = factor_walk.step(route);
  }
  __device__ __forceinline__ void take(int j, int valid, const float (&g_delta)[2][2],
                                       const float (&to_B)[2], const float (&to_C)[2]) {
    const FragmentB<T> factors = channel_pairs<T>(to_B, to_C);
    const int factors_valid = threadIdx.x % 32 < kGpuSegments ? valid : 0;
    float sums[4] = {};  // of B at the two steps, of C: in the first row's lanes
    multiply(sums, FragmentA<T>{{one, 0, 0, one}}, factors, sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * j + i;
      if (t >= kSteps) continue;
      delta.store(t, valid, g_delta[i]);
      const uint32_t both = pair_from_floats<T>(sums[i], sums[2 + i]);
      store_if(t < factors_valid, offset_bytes(factors_at, t, factor_step), both);
    }
  }
  __device__ __forceinline__ void finish_chunk() {}
  __device__ __forceinline__ void finish_route(const ParameterSums::Place&,
                                               const bool (&)[2]) const {}
};

// A lane's channels on a segment, and the way back through it.
template <typename T, typename G, int kSteps = kGpuSegmentSteps>
struct BackwardSegment {
  float dt[kSteps][2];  // in units of ln 2
  float a[kSteps][2];
  float h[kSteps + 1][2];     // h[t] enters step t
  float B[2 * kGpuProducts];  // times ln 2
  float C[2 * kGpuProducts];
  Two<T> x[kSteps];
  Two<G> gy[kSteps];

  // dt and a from delta, and B in their units: steps behind `valid` have size zero.
  __device__ __forceinline__ void find_factors(const float (&delta)[2 * kGpuProducts][2],
                                               const float (&A)[2], int valid) {
#pragma unroll
    for (int t = 0; t < kSteps; ++t) {
      B[t] *= kLn2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        dt[t][i] = t < valid ? softplus_base2(delta[t][i]) : 0.0f;
        a[t][i] = exp2_approx(dt[t][i] * A[i]);
      }
    }
  }
  // The other states of channel i from the one that enters.
  __device__ __forceinline__ void find_states(int i, float entering) {
    h[0][i] = entering;
#pragma unroll
    for (int t = 0; t < kSteps; ++t)
      h[t + 1][i] = fmaf(a[t][i], h[t][i], dt[t][i] * x[t][i] * B[t]);
  }
};

// What a lane sums up along a route for the parameters of its two channels.
struct ChannelGradients {
  float A[2];  // the parameter itself
  float g_bias[2] = {}, g_D[2] = {};
  float g_A[2] = {};  // over ln 2

  __device__ __forceinline__ void store(const ParameterSums::Place& to,
                                        const bool (&exists)[2]) const {
    const float whole_A[2] = {kLn2 * g_A[0], kLn2 * g_A[1]};
    to.store(exists, whole_A, g_bias, g_D);
  }
};

// Walks back through a segment of `valid` steps; `c` is the gradient that comes back from behind it, and becomes that
// which leaves it. Adds to the sums for gx and of the parameters, and hands on the gradients of delta, B and C.
template <typename T, typename G, int kSteps, class Sums, class Gradients>
__device__ __forceinline__ void walk_back(const BackwardSegment<T, G, kSteps>& s, float (&c)[2],
                                          ChannelGradients& parameters, const Sums& sums,
                                          Gradients& gradients, int valid) {
  const float A[2] = {kLn2 * parameters.A[0], kLn2 * parameters.A[1]};
  // One step back; to_B and to_C are sums over the lane's two channels.
  const auto step_back = [&](int t, float2& sum, float(&g_delta)[2], float& to_B, float& to_C) {
    to_B = to_C = 0;
    float to_x[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float gh = fmaf(s.C[t], s.gy[t][i], c[i]), gh_dt = gh * s.dt[t][i];
      c[i] = s.a[t][i] * gh;
      const float through = c[i] * s.h[t][i], from_B = gh * s.B[t];
      const float slope = fmaf(-kLog2e, exp2_approx(-s.dt[t][i]), kLog2e);  // sigmoid(delta) / ln 2
      parameters.g_A[i] = fmaf(s.dt[t][i], through, parameters.g_A[i]);
      to_x[i] = gh_dt * s.B[t];
      g_delta[i] = slope * fmaf(A[i], through, from_B * s.x[t][i]);
      parameters.g_bias[i] += g_delta[i];
      to_B = fmaf(gh_dt, s.x[t][i], to_B);
      to_C = fmaf(s.gy[t][i], s.h[t + 1][i], to_C);
    }
    to_B *= kLn2;
    sum = make_float2(sum.x + to_x[0], sum.y + to_x[1]);
  };
  const auto read_sums = [&](int j, float2(&pair)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (j >= 0 && 2 * j + i < kSteps) pair[i] = sums.read(2 * j + i);
  };
  float2 next_sums[2];
  read_sums(kGpuProducts - 1, next_sums);
#pragma unroll
  for (int j = kGpuProducts - 1; j >= 0; --j) {
    float g_delta[2][2] = {}, to_B[2] = {}, to_C[2] = {};
    float2 pair[2] = {next_sums[0], next_sums[1]};
#pragma unroll
    for (int i = 1; i >= 0; --i) {
      const int t = 2 * j + i;
      if (t >= kSteps) continue;
      step_back(t, pair[i], g_delta[i], to_B[i], to_C[i]);
    }
    read_sums(j - 1, next_sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * j + i;
      if (t < kSteps) sums.write(t, pair[i]);
    }
    gradients.take(j, valid, g_delta, to_B, to_C);
  }
  gradients.finish_chunk();
}

// The sums of a segment, read(t) of its steps, become gx when the last route has added to them.
template <int kSteps = kGpuSegmentSteps, typename T, class Sums>
__device__ __forceinline__ void write_gx(const BackwardArguments<T>& args, const BlockPlace& place,
                                         const TileRoute& route, int pixels, int valid, bool inside,
                                         const Sums& sums) {
  const PlaneWalk<T> gx(args.gx.data + place.image * args.gx.batch + lane_channel(args, place),
                        args.gx.pixel, route);
  T* const from = gx.at(pixels);
  gx.template each_step<kSteps>(route, from, kSteps - 1, [&](int t, T* at) {
    const float2 sum = sums.read(t);
    const unsigned word = pair_from_floats<T>(sum.x, sum.y);
    store_if(t < valid && inside, reinterpret_cast<unsigned*>(at), word);
  });
}

}  // namespace linescan
