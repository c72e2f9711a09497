// ss2d, backward, for bfloat16 data and one state: as backward.cu, with two channels or numbers an
// access.
//
//   gh[t] = C[t] gy[t] + c[t+1]          c[t] = a[t] gh[t]          a = exp(dt A), from the end
//   gx   += D gy + gh dt B               gB = sum over channels of gh dt x          gC of gy h
//   gdelta = sigmoid(delta) (A c h[t-1] + gh B x)          gA += dt c h[t-1]
//
// The states that enter the chunks come from the forward pass, or from another run of it. Chunks are
// taken from the last to the first, the gradient handed on from warp to warp; the first route starts
// the sums for gx in shared memory, the last one takes them to global memory.
//
// Source:    linescan/ops/ss2d/README.md; docs/decisions/0011-ss2d-on-gpus.md.
// Numerics:  recurrences and sums in float; what is summed over channels or steps on the tensor cores
//            (gradients of records and of dt_weight) is rounded to bfloat16 before, and the sums over 16
//            channels that blocks leave after. No atomics.
// Reference: reference.cpp beside this file. Chosen by launch_backward in backward.cu.

#include <type_traits>

#include "linescan/ops/ss2d/gpu_backward.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"
#include "linescan/ops/ss2d/gpu_recurrence.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {
namespace {

// Rows of ones that pick sums over the block's channels: the first eight of the depth are pairs of channels'
// numbers for B, the others for C; their sums become rows `row_B` and `row_C`.
__device__ __forceinline__ FragmentA<BFloat16> channel_ones(const Ss2dGpuArguments<BFloat16>& args,
                                                            const BlockPlace& place, int row_B,
                                                            int row_C) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const auto pair = [&](int i) {
    const int first = place.group * kGpuChannels + 4 * q + 2 * i;
    return first < args.channels ? 1.0f : 0.0f;
  };
  const uint32_t word = pair_from_floats<BFloat16>(pair(0), pair(1));
  FragmentA<BFloat16> ones;
#pragma unroll
  for (int i = 0; i < 4; ++i)  // rows g, g + 8 of the first eight; of the others
    ones.words[i] = g + 8 * (i & 1) == (i < 2 ? row_B : row_C) ? word : 0u;
  return ones;
}
// The operand beside them: a lane's numbers for B and C at two steps, sums over its two channels.
__device__ __forceinline__ FragmentB<BFloat16> channel_pairs(const float (&to_B)[2],
                                                             const float (&to_C)[2]) {
  return {{transpose_8x8(pair_from_floats<BFloat16>(to_B[0], to_B[1])),
           transpose_8x8(pair_from_floats<BFloat16>(to_C[0], to_C[1]))}};
}

// What becomes of the gradients of delta, B and C. Records of up to eight numbers: multiplied on the chip, by
// dt_weight transposed and by ones, which gives the gradient of records from the block's channels, eight numbers by
// eight columns a product; and by the records, which gives that of dt_weight.
struct MultipliedGradients {
  using T = BFloat16;

  FragmentA<T> weights, ones;
  RecordSums<T>::Route sums;
  int record;
  uint32_t rows[kGpuProducts];      // of the records: numbers are columns of a sum over the steps
  uint32_t steps[kGpuProducts][2];  // gdelta of a product's two steps, for either channel
  float g_weight[4] = {};

  __device__ __forceinline__ MultipliedGradients(const BackwardArguments<T>& args,
                                                 const BlockPlace& place, const TileRoute& route,
                                                 int k)
      : weights(weight_columns<T>(args, place, k, 0)),
        ones(channel_ones(args, place, args.rank, args.rank + 1)),
        sums(args.packed_record_sums.route(args, place, route, k)),
        record(args.record) {}
  __device__ __forceinline__ void start_chunk(const RecordColumns<T, 1>& records,
                                              const SegmentCursor&) {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) rows[j] = transpose_8x8(records.words[j][0]);
  }
  // Of the steps 2 j and 2 j + 1: g_delta [step, channel], and sums over the lane's two channels.
  __device__ __forceinline__ void take(int j, const SegmentCursor& here, int valid,
                                       const float (&g_delta)[2][2], const float (&to_B)[2],
                                       const float (&to_C)[2]) {
    for (int i = 0; i < 2; ++i) steps[j][i] = pair_from_floats<T>(g_delta[0][i], g_delta[1][i]);
    const FragmentB<T> deltas = {{transpose_8x8(steps[j][0]), transpose_8x8(steps[j][1])}};
    float product[4] = {};
    multiply(product, weights, deltas, product);
    multiply(product, ones, channel_pairs(to_B, to_C), product);
    store_records<T, 8>(sums, here.line, here.part * kGpuSegmentSteps, valid, 0, j, record,
                        product);
  }
  __device__ __forceinline__ void finish_chunk() {  // sums over the steps
#pragma unroll
    for (int pair = 0; pair < kGpuProducts / 2; ++pair) {
      const FragmentA<T> left = {
          {steps[2 * pair][0], steps[2 * pair][1], steps[2 * pair + 1][0], steps[2 * pair + 1][1]}};
      multiply(g_weight, left, {{rows[2 * pair], rows[2 * pair + 1]}}, g_weight);
    }
  }
  __device__ __forceinline__ void finish_route(const ParameterSums::Place& to,
                                               const bool (&exists)[2]) const {
    to.store_weights(0, exists, g_weight);
  }
};

// Long records: stored, B's and C's as sums over the block's channels (gpu_delta_gradient.cuh).
template <int kHalves>
struct StoredGradients {
  using T = BFloat16;

  uint32_t one;  // in the first row of B's depth, and in the last eight rows' first of C's
  PlaneWalk<T> walk;
  PlaneWalk<uint32_t> factor_walk;
  bool inside;  // whether the lane's channels exist
  T* at;
  uint32_t* factors_at;

  __device__ __forceinline__ StoredGradients(const BackwardArguments<T>& args,
                                             const BlockPlace& place, const TileRoute& route, int k)
      : one(channel_ones(args, place, 0, kDepth / 2).words[0]),
        walk(args.delta_gradient.of_block(place, k) + 2 * (static_cast<int>(threadIdx.x) % 32 / 4),
             args.delta_gradient.channels(), route),
        factor_walk(args.delta_gradient.factors_of_block(place, k), 1, route),
        inside(place.group * kGpuChannels + 2 * (static_cast<int>(threadIdx.x) % 32 / 4) <
               args.channels) {}
  __device__ __forceinline__ void start_chunk(const RecordColumns<T, kHalves>&,
                                              const SegmentCursor& here) {
    at = walk.at(here.line, here.part);
    factors_at = factor_walk.at(here.line, here.part);
  }
  __device__ __forceinline__ void take(int j, const SegmentCursor&, int valid,
                                       const float (&g_delta)[2][2], const float (&to_B)[2],
                                       const float (&to_C)[2]) {
    const FragmentB<T> factors = channel_pairs(to_B, to_C);
    const int factors_valid = threadIdx.x % 32 < kGpuSegments ? valid : 0;
    float sums[4] = {};  // of B at the two steps, of C: in the first row's lanes
    multiply(sums, FragmentA<T>{{one, 0, 0, one}}, factors, sums);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * j + i;
      if (t >= kGpuSegmentSteps) continue;
      const uint32_t deltas = inside ? pair_from_floats<T>(g_delta[i][0], g_delta[i][1]) : 0u;
      const uint32_t both = pair_from_floats<T>(sums[i], sums[2 + i]);
      if (t < valid) *reinterpret_cast<uint32_t*>(offset_bytes(at, t, walk.step)) = deltas;
      if (t < factors_valid) *offset_bytes(factors_at, t, factor_walk.step) = both;
    }
  }
  __device__ __forceinline__ void finish_chunk() {}
  __device__ __forceinline__ void finish_route(const ParameterSums::Place&,
                                               const bool (&)[2]) const {}
};

template <typename G, int kHalves, bool kWhole, bool kSolo>
__global__ void __launch_bounds__(32 * kGpuBackwardWarps)
    packed_backward_kernel(BackwardArguments<BFloat16> args) {
  using T = BFloat16;
  using Gradients = std::conditional_t<8 * kHalves <= kGpuOnChipNumbers, MultipliedGradients,
                                       StoredGradients<kHalves>>;
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  auto* sums = reinterpret_cast<float*>(shared_memory());
  float* behind_sums = sums + place.height * place.pitch * kGpuChannels;
  StateChain<kSolo> chain(behind_sums, true);
  const int first_channel = lane_channel(args, place);
  const int channel[2] = {first_channel, first_channel + 1};
  const bool inside = place.group * kGpuChannels + 2 * g < args.channels;
  const bool exists[2] = {inside, inside};
  const PackedFactors<T, kHalves> factors(args);
  const auto gout = args.template gout_as<G>();

  for (int k = 0; k < args.routes; ++k) {
    const TileRoute route(args, place, args.codes[k]);
    const PlaneWalk<const T> x_walk(args.x.data + place.image * args.x.batch + first_channel,
                                    args.x.pixel, route);
    const PlaneWalk<const G> gout_walk(gout.data + place.image * gout.batch + first_channel,
                                       gout.pixel, route);
    const PlaneWalk<T> gx_walk(args.gx.data + place.image * args.gx.batch + first_channel,
                               args.gx.pixel, route);
    const RecordWalk<T, kHalves, kWhole> record_walk(args, place, route, k);
    const SumWalk sum_walk(sums, place, route);
    const PackedWeights<T, kHalves> weights(args, place, k);
    Gradients gradients(args, place, route, k);
    const PieceStates<T> entrance(args, args.entering, place, route, k, channel);
    const PieceStates<T> ending(args, args.returning, place, route, k, channel);
    float A[2], rate[2], skip[2];
    for (int i = 0; i < 2; ++i) {
      A[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel[i]]);
      rate[i] = kLog2e * A[i];
      skip[i] = k == 0 ? skip_of_routes(args, channel[i]) : 0.0f;
    }
    float g_bias[2] = {}, g_A[2] = {}, g_D[2] = {};

    const bool last_route = k == args.routes - 1;
    const int apart = warps * kGpuSegments;
    const int lines_apart = apart / route.segments_a_line;
    const int parts_apart = apart - lines_apart * route.segments_a_line;
    const int chunks = route.chunks();
    const int last_chunk = warp < chunks ? (chunks - 1 - warp) / warps * warps + warp : 0;
    SegmentCursor own(route, last_chunk * kGpuSegments + q);
    SegmentCursor column(route, last_chunk * kGpuSegments + g / 2);
    const float2* starts = StateTable(args.starts, args.routes, args.chunks, 1).at(k, 0, 0, g);

    RecordColumns<T, kHalves> records;
    Two<T> next_x[kGpuSegmentSteps];
    Two<G> next_gy[kGpuSegmentSteps];
    record_walk.load(records, route, column);
    load_steps<kWhole>(next_x, x_walk, route, own);
    load_steps<kWhole>(next_gy, gout_walk, route, own);
    // The states with which lines start that do, and their gradients with which they end.
    const auto fresh_state = [&](const SegmentCursor& at) {
      return kWhole ? make_float2(0, 0)
                    : entrance.pair(at.line,
                                    entrance.each_line && at.part == 0 && at.line < route.lines);
    };
    const auto ending_state = [&](const SegmentCursor& at) {
      return kWhole ? make_float2(0, 0)
                    : ending.pair(at.line, ending.each_line && at.line < route.lines &&
                                               at.part == route.segments_a_line - 1);
    };
    float2 next_fresh = fresh_state(own), next_ending = ending_state(own);
    float2 next_start = starts[last_chunk * (kGpuChannels / 2)];
    bool behind = k > 0;  // whether other warps may still add to the sums of the route before
    for (int chunk = last_chunk; warp < chunks && chunk >= 0; chunk -= warps) {
      const int valid = own.template valid<kWhole>(route);
      float delta[2 * kGpuProducts][2], B[2 * kGpuProducts], C[2 * kGpuProducts];
      weights.multiply(records, delta);
      factors.multiply(records, B, C);
      gradients.start_chunk(records, own);
      // Steps of size and gradient zero are none: behind the end of a line, and of the route.
      Two<T> x[kGpuSegmentSteps];
      Two<G> gy[kGpuSegmentSteps];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        x[t] = next_x[t];
        gy[t] = t < valid ? next_gy[t] : Two<G>{};
      }
      const float2 start = next_start, fresh = next_fresh, end_state = next_ending;
      const SegmentCursor here = own;
      // The next chunk's numbers are fetched meanwhile; after the last one, its own again, if there are others to
      // hurry for: a branch here delays what is handed on.
      if (!kSolo || chunk >= warps) {
        if (chunk >= warps) {
          own.retreat(route, lines_apart, parts_apart);
          column.retreat(route, lines_apart, parts_apart);
        }
        record_walk.load(records, route, column);
        load_steps<kWhole>(next_x, x_walk, route, own);
        load_steps<kWhole>(next_gy, gout_walk, route, own);
        next_fresh = fresh_state(own);
        next_ending = ending_state(own);
        next_start = starts[max(0, chunk - warps) * (kGpuChannels / 2)];
      }
      const SegmentSums<kWhole> own_sums(sum_walk, route, here, valid);
      if (k == 0) {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          const float gy0 = gy[t][0], gy1 = gy[t][1];
          g_D[0] = fmaf(gy0, x[t][0], g_D[0]);
          g_D[1] = fmaf(gy1, x[t][1], g_D[1]);
          own_sums.write(t, make_float2(skip[0] * gy0, skip[1] * gy1));
        }
      }

      // Forward again: the states of the segment, h[t] before step t.
      float dt[kGpuSegmentSteps][2], a[kGpuSegmentSteps][2];
      float h[kGpuSegmentSteps + 1][2];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          dt[t][i] = softplus_short(delta[t][i]);
          if (!kWhole && t >= valid) dt[t][i] = 0;
          a[t][i] = exp2_approx(dt[t][i] * rate[i]);
        }
      const bool anew = !kWhole && entrance.each_line && here.part == 0 && valid > 0;
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float entered = i ? start.y : start.x;
        const float new_state = anew ? (i ? fresh.y : fresh.x) : 0.0f;
        Transfer all = {anew ? 0.0f : 1.0f, new_state};
        factor[i] = 1;
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          factor[i] *= a[t][i];
          all.offset = fmaf(a[t][i], all.offset, dt[t][i] * x[t][i] * B[t]);
        }
        all.factor *= factor[i];
        all = scan_segments<false>(all, q);
        const Transfer earlier = shuffle_up(all, 1);
        h[0][i] = anew ? new_state : q > 0 ? earlier.apply(entered) : entered;
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
          h[t + 1][i] = fmaf(a[t][i], h[t][i], dt[t][i] * x[t][i] * B[t]);
      }

      // Back: a line that ends the sequence knows what comes back from behind it.
      const bool ends =
          !kWhole && ending.each_line && valid > 0 && here.part == route.segments_a_line - 1;
      Transfer all[2], after[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (ends) all[i] = {0, i ? end_state.y : end_state.x};
        after[i] = all[i];
        all[i].factor *= factor[i];
#pragma unroll
        for (int t = kGpuSegmentSteps - 1; t >= 0; --t)
          all[i].offset = a[t][i] * fmaf(C[t], gy[t][i], all[i].offset);
        all[i] = scan_segments<true>(all[i], q);
        const Transfer later = shuffle_down(all[i], 1);
        if (q < kGpuSegments - 1 && !ends) after[i] = later;
      }
      if (behind) {
        __syncthreads();
        behind = false;
      }
      float2 returned;
      if (chunk + 1 < chunks)
        returned = chain.take(chunk + 1, g);
      else
        returned = kWhole ? make_float2(0, 0)
                          : make_float2(ending.state(route.lines - 1, 0, 0),
                                        ending.state(route.lines - 1, 0, 1));
      // The chunk's own transfer is that of the first segment and all behind.
      if (chunk > 0)
        chain.give(chunk, g, q, 0, make_float2(all[0].apply(returned.x), all[1].apply(returned.y)));
      float c[2] = {after[0].apply(returned.x), after[1].apply(returned.y)};

      // One step back. Adds to the sums for gx and of the parameters; to_B and to_C are sums over the
      // lane's two channels.
      const auto step_back = [&](int t, float2& sum, float(&g_delta)[2], float& to_B, float& to_C) {
        to_B = to_C = 0;
        float to_x[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float gh = fmaf(C[t], gy[t][i], c[i]), gh_dt = gh * dt[t][i];
          c[i] = a[t][i] * gh;
          const float through = c[i] * h[t][i], from_B = gh * B[t];
          const float slope = 1.0f - exp2_approx(-kLog2e * dt[t][i]);  // sigmoid(delta)
          g_A[i] = fmaf(dt[t][i], through, g_A[i]);
          to_x[i] = gh_dt * B[t];
          g_delta[i] = slope * fmaf(A[i], through, from_B * x[t][i]);
          g_bias[i] += g_delta[i];
          to_B = fmaf(gh_dt, x[t][i], to_B);
          to_C = fmaf(gy[t][i], h[t + 1][i], to_C);
        }
        sum = make_float2(sum.x + to_x[0], sum.y + to_x[1]);
      };
      const auto read_sums = [&](int j, float2(&pair)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (j >= 0 && 2 * j + i < kGpuSegmentSteps) pair[i] = own_sums.read(2 * j + i);
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
          if (t >= kGpuSegmentSteps) continue;
          step_back(t, pair[i], g_delta[i], to_B[i], to_C[i]);
        }
        read_sums(j - 1, next_sums);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int t = 2 * j + i;
          if (t < kGpuSegmentSteps) own_sums.write(t, pair[i]);
        }
        gradients.take(j, here, valid, g_delta, to_B, to_C);
      }
      gradients.finish_chunk();
      if (last_route) {
        T* first = gx_walk.at(here.line, here.part);
        gx_walk.each_step(first, kGpuSegmentSteps - 1, [&](int t, T* at) {
          const float2 sum = own_sums.read(t);
          const unsigned word = pair_from_floats<T>(sum.x, sum.y);
          if (t < valid && inside) *reinterpret_cast<unsigned*>(at) = word;
        });
      }
    }
    if (behind) __syncthreads();
    const ParameterSums::Place sum_place = args.parameter_sums.place(args, place, k, warp, channel);
    sum_place.finish(exists, g_bias, g_D);
    sum_place.store_A(exists, g_A);
    gradients.finish_route(sum_place, exists);
  }
}

template <typename G, bool kWhole>
void launch_halves(const BackwardArguments<BFloat16>& args, int halves, const Ss2dGpuPlan& plan,
                   int64_t images, GpuStream stream) {
  dispatch_halves(halves, [&]<int kHalves>() {
    launch("ss2d packed_backward",
           plan.block == 32 ? packed_backward_kernel<G, kHalves, kWhole, true>
                            : packed_backward_kernel<G, kHalves, kWhole, false>,
           {plan.blocks_an_image() * images, static_cast<int>(plan.block), plan.shared_bytes},
           stream, args);
  });
}

}  // namespace

bool packs_backward(const BackwardArguments<BFloat16>& args) {
  return packed_halves(args) > 0 && packed_pairs(args.gx, 2, args.width) &&
         reinterpret_cast<std::uintptr_t>(args.gprojection) % 4 == 0 &&
         int64_t{args.width} * args.channel_groups * kGpuChannels < int64_t{1} << 27 &&
         (args.gout_dtype == DType::kBFloat16 || args.gout_dtype == DType::kFloat32) &&
         packed_pairs(args.gout, size_of(args.gout_dtype), args.width);
}

void launch_packed_backward(const BackwardArguments<BFloat16>& args, const Ss2dGpuPlan& plan,
                            int64_t images, GpuStream stream) {
  const auto run = [&]<typename G>() {
    whole_lines(args) ? launch_halves<G, true>(args, packed_halves(args), plan, images, stream)
                      : launch_halves<G, false>(args, packed_halves(args), plan, images, stream);
  };
  args.gout_dtype == DType::kFloat32 ? run.template operator()<float>()
                                     : run.template operator()<BFloat16>();
}

}  // namespace linescan
