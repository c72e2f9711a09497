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
//            (gradients of records and of dt_weight) is rounded to bfloat16 before, and the records'
//            gradients of 16 channels after. No atomics.
// Reference: reference.cpp beside this file. Chosen by launch_backward in backward.cu.

#include <type_traits>

#include "linescan/ops/ss2d/gpu_backward.cuh"
#include "linescan/ops/ss2d/gpu_packed.cuh"
#include "linescan/ops/ss2d/gpu_recurrence.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"

namespace linescan {
namespace {

// The records' columns of a chunk as operands of sums over its steps: numbers are columns then.
template <int kHalves>
struct RecordRows {
  uint32_t words[kGpuProducts][kHalves];

  __device__ __forceinline__ void transpose(const RecordColumns<BFloat16, kHalves>& columns) {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        words[j][half] = transpose_8x8(columns.words[j][half]);
  }
};

// The sums over the block's channels that make the gradient of records, a product of 16 numbers by
// eight columns each: dt_weight transposed, and ones where B and C are. Long records leave the rows of
// dt_weight in shared memory, [parts, lanes].
template <int kHalves>
struct ChannelSums {
  static constexpr int kParts = (kHalves + 1) / 2;
  static constexpr bool kShared = kHalves > kGpuKeptHalves;
  FragmentA<BFloat16> weights[kShared ? 1 : kParts], ones;
  uint4* shared;

  // All warps of the block take part; what is shared is complete behind the next barrier.
  __device__ __forceinline__ ChannelSums(const Ss2dGpuArguments<BFloat16>& args,
                                         const BlockPlace& place, int k, uint4* shared)
      : shared(shared) {
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    if constexpr (kShared) {
      for (int part = threadIdx.x / 32; part < kParts; part += blockDim.x / 32) {
        const auto rows = weight_columns<BFloat16>(args, place, k, part);
        shared[part * 32 + lane] = {rows.words[0], rows.words[1], rows.words[2], rows.words[3]};
      }
    } else {
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        weights[part] = weight_columns<BFloat16>(args, place, k, part);
    }
    // The first eight of the depth are sums for B, the others for C, of pairs of channels.
    const int at = args.rank - (kParts - 1) * kDepth;
    ones.fill([&](int row, int i) {
      const int first = place.group * kGpuChannels + 2 * (fragment_k(q, i) % 8);
      return g + 8 * row == at + i / 2 && first < args.channels ? 1.0f : 0.0f;
    });
  }

  __device__ __forceinline__ FragmentA<BFloat16> part(int part) const {
    if constexpr (!kShared) return weights[part];
    const uint4 words = shared[part * 32 + static_cast<int>(threadIdx.x) % 32];
    return {{words.x, words.y, words.z, words.w}};
  }
};

template <typename G, int kHalves, bool kWhole, bool kSolo>
__global__ void __launch_bounds__(32 * kGpuBackwardWarps)
    packed_backward_kernel(BackwardArguments<BFloat16> args) {
  using T = BFloat16;
  constexpr int kParts = (kHalves + 1) / 2;
  constexpr bool kShared = ChannelSums<kHalves>::kShared;
  const BlockPlace place(args);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  auto* sums = reinterpret_cast<float*>(shared_memory());
  float* behind_sums = sums + place.height * place.pitch() * kGpuChannels;
  StateChain<kSolo> chain(behind_sums, true);
  auto* shared_weights = reinterpret_cast<uint4*>(behind_sums + args.chunks * kGpuChannels);
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
    if (kShared) __syncthreads();  // no warp reads the weights of the route before
    const ChannelSums<kHalves> channel_sums(args, place, k, shared_weights);
    if (kShared) __syncthreads();
    const PieceStates<T> entrance(args, args.entering, place, route, k, channel);
    const PieceStates<T> ending(args, args.returning, place, route, k, channel);
    const RecordSums<T>::Route record_sums = args.packed_record_sums.route(args, place, route, k);
    float A[2], rate[2], skip[2];
    for (int i = 0; i < 2; ++i) {
      A[i] =
          -exp2_approx(kLog2e * args.A_log[static_cast<int64_t>(k) * args.channels + channel[i]]);
      rate[i] = kLog2e * A[i];
      skip[i] = k == 0 ? skip_of_routes(args, channel[i]) : 0.0f;
    }
    float g_bias[2] = {}, g_A[2] = {}, g_D[2] = {}, g_weight[kHalves][4] = {};

    const bool last_route = k == args.routes - 1;
    const int apart = warps * kGpuSegments;
    const int lines_apart = apart / route.segments_a_line;
    const int parts_apart = apart - lines_apart * route.segments_a_line;
    const int chunks = route.chunks();
    const int last_chunk = warp < chunks ? (chunks - 1 - warp) / warps * warps + warp : 0;
    SegmentCursor own(route, last_chunk * kGpuSegments + q);
    SegmentCursor column(route, last_chunk * kGpuSegments + g / 2);
    const float2* starts = StateTable(args.starts, args.routes, args.chunks, 1).at(k, 0, 0, g);

    constexpr bool kAhead = !kShared;  // else the records of two chunks would fill the registers
    RecordColumns<T, kHalves> records;
    Two<T> next_x[kGpuSegmentSteps];
    Two<G> next_gy[kGpuSegmentSteps];
    if (kAhead) record_walk.load(records, route, column);
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
    bool behind =
        k > 0 && !kShared;  // whether other warps may still add to the sums of the route before
    for (int chunk = last_chunk; warp < chunks && chunk >= 0; chunk -= warps) {
      const int valid = own.template valid<kWhole>(route);
      float delta[2 * kGpuProducts][2], B[2 * kGpuProducts], C[2 * kGpuProducts];
      if (!kAhead) record_walk.load(records, route, column);
      weights.multiply(records, delta);
      factors.multiply(records, B, C);
      const SegmentCursor here_column = column;
      RecordRows<kHalves> rows;
      if (!kShared) rows.transpose(records);
      // Steps of size and gradient zero are none: behind the end of a line, and of the route.
      Two<T> x[kGpuSegmentSteps];
      Two<G> gy[kGpuSegmentSteps];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        x[t] = next_x[t];
        gy[t] = t < valid ? next_gy[t] : Two<G>{};
      }
      const float2 start = next_start, fresh = next_fresh, end_state = next_ending;
      // The next chunk's numbers are fetched meanwhile; after the last one, its own again.
      const SegmentCursor here = own;
      if (chunk >= warps) {
        own.retreat(route, lines_apart, parts_apart);
        column.retreat(route, lines_apart, parts_apart);
      }
      if (kAhead) record_walk.load(records, route, column);
      load_steps<kWhole>(next_x, x_walk, route, own);
      load_steps<kWhole>(next_gy, gout_walk, route, own);
      next_fresh = fresh_state(own);
      next_ending = ending_state(own);
      next_start = starts[max(0, chunk - warps) * (kGpuChannels / 2)];
      if (k == 0) {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          if (t >= valid) continue;
          const float gy0 = gy[t][0], gy1 = gy[t][1];
          g_D[0] = fmaf(gy0, x[t][0], g_D[0]);
          g_D[1] = fmaf(gy1, x[t][1], g_D[1]);
          *sum_walk.at(here, t) = make_float2(skip[0] * gy0, skip[1] * gy1);
        }
      }

      // Forward again: the states of the segment, h[t] before step t.
      float dt[kGpuSegmentSteps][2], a[kGpuSegmentSteps][2];
      float u[kGpuSegmentSteps][2], h[kGpuSegmentSteps + 1][2];
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          dt[t][i] = softplus_short(delta[t][i]);
          if (!kWhole && t >= valid) dt[t][i] = 0;
          a[t][i] = exp2_approx(dt[t][i] * rate[i]);
          u[t][i] = dt[t][i] * x[t][i];
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
          all.offset = fmaf(a[t][i], all.offset, u[t][i] * B[t]);
        }
        all.factor *= factor[i];
        all = scan_segments<false>(all, q);
        const Transfer earlier = shuffle_up(all, 1);
        h[0][i] = anew ? new_state : q > 0 ? earlier.apply(entered) : entered;
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t)
          h[t + 1][i] = fmaf(a[t][i], h[t][i], u[t][i] * B[t]);
      }

      // Back: a line that ends the sequence knows what comes back from behind it.
      const bool ends =
          !kWhole && ending.each_line && valid > 0 && here.part == route.segments_a_line - 1;
      float gC[kGpuSegmentSteps][2];  // C gy
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t)
#pragma unroll
        for (int i = 0; i < 2; ++i) gC[t][i] = C[t] * gy[t][i];
      Transfer all[2], after[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (ends) all[i] = {0, i ? end_state.y : end_state.x};
        after[i] = all[i];
        all[i].factor *= factor[i];
#pragma unroll
        for (int t = kGpuSegmentSteps - 1; t >= 0; --t)
          all[i].offset = a[t][i] * (gC[t][i] + all[i].offset);
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
      const auto step_back = [&](int t, float(&g_delta)[2], float& to_B, float& to_C) {
        to_B = to_C = 0;
        float to_x[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float gh = gC[t][i] + c[i];
          c[i] = a[t][i] * gh;
          const float through = c[i] * h[t][i], from_B = gh * B[t];
          const float slope = 1.0f - exp2_approx(-kLog2e * dt[t][i]);  // sigmoid(delta)
          g_A[i] = fmaf(dt[t][i], through, g_A[i]);
          to_x[i] = from_B;
          g_delta[i] = slope * fmaf(A[i], through, from_B * x[t][i]);
          g_bias[i] += g_delta[i];
          to_B = fmaf(gh, u[t][i], to_B);
          to_C = fmaf(gy[t][i], h[t + 1][i], to_C);
        }
        if (t >= valid) return;
        float2* sum = sum_walk.at(here, t);
        const float2 so_far = *sum;
        *sum = make_float2(fmaf(to_x[0], dt[t][0], so_far.x), fmaf(to_x[1], dt[t][1], so_far.y));
      };
      uint32_t steps[kGpuProducts][2];  // gdelta of a product's two steps, for either channel
#pragma unroll
      for (int j = kGpuProducts - 1; j >= 0; --j) {
        float g_delta[2][2] = {}, to_B[2] = {}, to_C[2] = {};
#pragma unroll
        for (int i = 1; i >= 0; --i) {
          const int t = 2 * j + i;
          if (t >= kGpuSegmentSteps) continue;
          step_back(t, g_delta[i], to_B[i], to_C[i]);
        }
        for (int i = 0; i < 2; ++i) steps[j][i] = pair_from_floats<T>(g_delta[0][i], g_delta[1][i]);
        const FragmentB<T> deltas = {{transpose_8x8(steps[j][0]), transpose_8x8(steps[j][1])}};
        const FragmentB<T> both = {{transpose_8x8(pair_from_floats<T>(to_B[0], to_B[1])),
                                    transpose_8x8(pair_from_floats<T>(to_C[0], to_C[1]))}};
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          float record[4] = {};
          linescan::multiply(record, channel_sums.part(part), deltas, record);
          if (part == kParts - 1) linescan::multiply(record, channel_sums.ones, both, record);
          store_records<T, 8 * kHalves>(record_sums, here.line, here.part * kGpuSegmentSteps, valid,
                                        part, j, args.record, record);
        }
      }
      // gdt_weight: sums over the steps.
      if (kShared) {
        RecordColumns<T, kHalves> again;
        record_walk.template load<true>(again, route, here_column);
        rows.transpose(again);
      }
#pragma unroll
      for (int pair = 0; pair < kGpuProducts / 2; ++pair) {
        const FragmentA<T> left = {{steps[2 * pair][0], steps[2 * pair][1], steps[2 * pair + 1][0],
                                    steps[2 * pair + 1][1]}};
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
          linescan::multiply(g_weight[half], left,
                             {{rows.words[2 * pair][half], rows.words[2 * pair + 1][half]}},
                             g_weight[half]);
      }
      if (last_route) {
        T* first = gx_walk.at(here.line, here.part);
        gx_walk.each_step(first, kGpuSegmentSteps - 1, [&](int t, T* at) {
          if (t >= valid || !inside) return;
          const float2 sum = *sum_walk.at(here, t);
          *reinterpret_cast<unsigned*>(at) = pair_from_floats<T>(sum.x, sum.y);
        });
      }
    }
    if (behind) __syncthreads();
    const ParameterSums::Place sum_place = args.parameter_sums.place(args, place, k, warp, channel);
    sum_place.finish(exists, g_bias, g_D);
    sum_place.store_A(exists, g_A);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      sum_place.store_weights(half, exists, g_weight[half]);
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
