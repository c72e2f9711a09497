// ss2d, backward, for half data and an even number of states on planes of one tile: as packed_backward.cu, with a loop over
// pairs of states in every chunk.
//
//   gh[t,n] = C[t,n] gy[t] + c[t+1,n]       c[t,n] = a[t,n] gh[t,n]       a = exp(dt A), from the end
//   gx   += D gy + dt P[t]                  P[t] = sum_n gh B                    gB = sum over channels of gh dt x
//   gdelta = sigmoid(delta) (x P[t] + Q[t]) Q[t] = sum_n A c h[t-1]              gC = sum over channels of gy h
//   gA    += dt c h[t-1]
//
// The states that enter the chunks come from the forward pass, or from another run of it. Chunks are taken from the last to the
// first of a route, what comes back handed on from warp to warp as the forward kernel hands on states.
//
// The gradients of B and C, sums over the block's channels, are stored for sum_factors, and with up to eight dts those of dts;
// with more the gradient of delta, for delta_products.cu.
//
// Source:    docs/decisions/0046-several-states-backward.md, 0066.
// Numerics:  recurrences and sums in float; what is stored is rounded to T, and B's and C's addends before they are summed on the
//            tensor cores. No atomics.
// Reference: reference.cpp beside this file. Chosen by launch_backward in backward.cu.

#include "linescan/ops/device_code/segments.cuh"
#include "linescan/ops/ss2d/gpu_packed_gradients.cuh"
#include "linescan/ops/ss2d/gpu_packed_states.cuh"
#include "linescan/ops/ss2d/gpu_states.cuh"
#include "linescan/ops/ss2d/gpu_sums.cuh"

namespace linescan {
namespace {

// Sums over the block's channels for the gradients of B and C of eight states, which are rows of one product's result: B's
// first. A lane stores the two rows that it holds.
template <typename T>
struct FactorGradients {
  uint32_t ones;  // of the channels that exist
  int row;        // the lane's
  int states;
  PlaneWalk<T> walk;
  T* at;     // of the segment's first step
  int step;  // bytes from step to step
  float sums[kGpuProducts][4];

  __device__ __forceinline__ FactorGradients(const BackwardArguments<T>& args,
                                             const BlockPlace& place, const TileRoute& route, int k,
                                             int g)
      : ones(channel_ones(args, place, g, g).words[0]),
        row(g),
        states(args.states),
        walk(reinterpret_cast<T*>(args.delta_gradient.factors_of_block(place, k)) + g,
             2 * args.states, route) {}

  __device__ __forceinline__ void start_walk(const TileRoute& route, int pixels) {
    at = walk.at(pixels);
    step = walk.step(route);
  }
  __device__ __forceinline__ void start_states() {
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[j][i] = 0;
  }
  // Of state n of the eight: sums over the lane's two channels at its steps, for B or for C.
  template <bool kOfC>
  __device__ __forceinline__ void add(int n, const float (&values)[2 * kGpuProducts]) {
    const uint32_t own = row == n ? ones : 0u;
    const FragmentA<T> rows = {{kOfC ? 0u : own, kOfC ? own : 0u, 0u, 0u}};
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j)
      multiply_half(sums[j], rows,
                    transpose_8x8(pair_from_floats<T>(values[2 * j], values[2 * j + 1])), sums[j]);
  }
  // Of the eight states from `first` on, or as many as there are.
  __device__ __forceinline__ void store(int first, int valid) const {
    const int steps = first + row < states ? valid : 0;
#pragma unroll
    for (int t = 0; t < kGpuSegmentSteps; ++t) {
      T* const to = offset_bytes(at + first, t, step);
      store_if(t < steps, to, from_float<T>(sums[t / 2][t % 2]));
      store_if(t < steps, to + states, from_float<T>(sums[t / 2][2 + t % 2]));
    }
  }
};

// The gradient of A, summed over a warp's chunks of a route in shared memory behind the links: a lane has one of its two
// channels and of a pair of states.
struct RateGradients {
  float* own;  // of the first pair; of the next one 32 numbers on
  int pairs;

  __device__ __forceinline__ RateGradients(const StateMemory& memory, int warp, int warps, int lane)
      : own(keep_shared(memory.behind(warps) + warp * memory.pairs * 32 + lane)),
        pairs(memory.pairs) {}
  __device__ __forceinline__ void clear() const {
    for (int pair = 0; pair < pairs; ++pair) own[32 * pair] = 0;
  }
  // `sums`: of the lane's segment, of its two channels for one state and for the other.
  __device__ __forceinline__ void add(int pair, float (&sums)[4], int lane) const {
    fold_halves<4>(sums, lane, 2);
    fold_halves<2>(sums, lane, 1);
    own[32 * pair] += sums[0];
  }
  __device__ __forceinline__ void store(const ParameterSums::Place& to, bool inside, int q) const {
    float* const at = (q % 2 == 0 ? to.of_A(0) : to.of_A(1)) + q / 2;
    for (int pair = 0; inside && pair < pairs; ++pair) to.put(at[2 * pair], kLn2 * own[32 * pair]);
  }
};

// gout of the lane's two channels at the steps of a segment, T or float32: as it is in memory, so that nothing waits for it where it
// is asked for.
template <typename T>
struct GoutSteps {
  static constexpr int kSteps = kGpuSegmentSteps;
  uint32_t words[kSteps][2];  // of T: the first

  template <bool kWhole>
  __device__ __forceinline__ void load(const BackwardArguments<T>& args, const BlockPlace& place,
                                       const ChunkRoute& route, const SegmentCursor& here) {
    const auto load = [&]<typename G>(const auto& take) {
      const auto gout = args.template gout_as<G>();
      const PlaneWalk<const G> walk(
          gout.data + place.image * gout.batch + lane_channel(args, place), gout.pixel, route);
      Two<G> steps[kSteps];
      load_steps<kWhole>(steps, walk, route, here);
#pragma unroll
      for (int t = 0; t < kSteps; ++t) take(words[t], steps[t]);
    };
    if (args.gout_dtype == DType::kFloat32)
      load.template operator()<float>([](uint32_t(&to)[2], const Two<float>& step) {
        for (int i = 0; i < 2; ++i) to[i] = __float_as_uint(step[i]);
      });
    else
      load.template operator()<T>(
          [](uint32_t(&to)[2], const Two<T>& step) { to[0] = step.word, to[1] = 0; });
  }
  // Zero at steps that the segment does not have.
  __device__ __forceinline__ void convert(float (&gy)[kSteps][2], bool wide, int valid) const {
#pragma unroll
    for (int t = 0; t < kSteps; ++t)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float step = wide ? __uint_as_float(words[t][i]) : Two<T>{words[t][0]}[i];
        gy[t][i] = t < valid ? step : 0.0f;
      }
  }
};

// What becomes of the gradient of delta. Of up to eight dts: multiplied on the chip behind the states of a chunk, which take most of
// the time; what is stored is smaller by far.
template <typename T>
struct MultipliedChunk {
  MultipliedDelta<T> delta;
  RecordColumns<T, 1> records;
  PlaneWalk<T> walk;  // from the number that is the lane's row of the products
  int numbers;        // of dts

  __device__ __forceinline__ MultipliedChunk(const BackwardArguments<T>& args,
                                             const BlockPlace& place, const TileRoute& route, int k)
      : delta(args, place, k),
        walk(args.delta_gradient.dts_of_block(place, k) + delta.row(), args.rank, route),
        numbers(args.rank) {}
  // The dts of the chunk at hand, anew: there is no register for them while states are walked.
  template <bool kWhole>
  __device__ __forceinline__ void load(const RecordWalk<T, 1, kWhole>& dts, const ChunkRoute& route,
                                       const SegmentCursor& column) {
    dts.load(records, route, column);
  }
  // g_delta: of the lane's steps.
  __device__ __forceinline__ void take(const TileRoute& route, int pixels, int valid,
                                       const float (&g_delta)[2 * kGpuProducts][2]) {
    delta.start_chunk(records);
    const int steps = delta.row() < numbers ? valid : 0;
    T* const at = walk.at(pixels);
#pragma unroll
    for (int j = 0; j < kGpuProducts; ++j) {
      const float of_steps[2][2] = {{g_delta[2 * j][0], g_delta[2 * j][1]},
                                    {g_delta[2 * j + 1][0], g_delta[2 * j + 1][1]}};
      float product[4] = {};
      delta.take(j, of_steps, product);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int t = 2 * j + i;
        store_if(t < steps, offset_bytes(at, t, walk.step(route)), from_float<T>(product[i]));
      }
    }
    delta.finish_chunk();
  }
  __device__ __forceinline__ void finish_route(const ParameterSums::Place& to,
                                               const bool (&exists)[2]) const {
    to.store_weights(0, exists, delta.g_weight);
  }
};
// Of more: stored, for the products behind the launch.
template <typename T>
struct StoredChunk {
  StoredDelta<T> delta;

  __device__ __forceinline__ StoredChunk(const BackwardArguments<T>& args, const BlockPlace& place,
                                         const TileRoute& route, int k)
      : delta(args, place, route, k) {}
  template <class Walk>
  __device__ __forceinline__ void load(const Walk&, const ChunkRoute&, const SegmentCursor&) {}
  __device__ __forceinline__ void take(const TileRoute& route, int pixels, int valid,
                                       const float (&g_delta)[2 * kGpuProducts][2]) {
    delta.start_walk(route, pixels);
#pragma unroll
    for (int t = 0; t < kGpuSegmentSteps; ++t) delta.store(t, valid, g_delta[t]);
  }
  __device__ __forceinline__ void finish_route(const ParameterSums::Place&,
                                               const bool (&)[2]) const {}
};

template <typename T, int kEights, bool kWhole, bool kSolo>
__global__ void __launch_bounds__(32 * kGpuBackwardWarps)
    packed_states_backward_kernel(BackwardArguments<T> args) {
  const BlockPlace place(args);
  int warps = blockDim.x / 32, warp = threadIdx.x / 32;
  keep(warps);
  keep(warp);
  const int lane = kept_lane(), g = lane / 4, q = lane % 4;
  float* sums = keep_shared(reinterpret_cast<float*>(shared_memory()));
  StateMemory memory(behind_sums(sums, place, false), args);
  memory.begin(args, place);
  StateLinks<kSolo> links(memory, warp, warps);
  const RateGradients rate_gradients(memory, warp, warps, lane);
  const int first_channel = lane_channel(args, place);
  const int channel[2] = {first_channel, first_channel + 1};
  const bool inside = place.group * kGpuChannels + 2 * g < args.channels;
  const bool exists[2] = {inside, inside};
  const StateTable starts(args);
  using Delta =
      std::conditional_t<8 * kEights <= kGpuOnChipNumbers, MultipliedChunk<T>, StoredChunk<T>>;
  constexpr int kPairs = kGpuChannels / 2;
  __syncthreads();

  int later =
      warp;  // chunks of the route behind the one at hand; behind its beginning, of the next route
  for (int k = 0; k < args.routes; ++k) {
    const ChunkRoute route(args, place, args.codes[k]);
    const PlaneWalk<const T> x_walk(args.x.data + place.image * args.x.batch + first_channel,
                                    args.x.pixel, route);
    const RecordWalk<T, kEights, kWhole> dts_walk(args, place, route, k);
    const RecordWalk<T, 1, kWhole> B_walk(args, place, route, k, args.rank);
    const SumWalk sum_walk(sums, place, route);
    const PackedWeights<T, kEights> weights(args, place, k);
    const float2* const rates = memory.rates + k * args.states * kPairs + g;
    const ParameterSums::Place sum_place = args.parameter_sums.place(args, place, k, warp, channel);
    rate_gradients.clear();
    Delta delta_gradient(args, place, route, k);
    FactorGradients<T> factor_gradients(args, place, route, k, g);
    float skip[2], g_bias[2] = {}, g_D[2] = {};
    for (int i = 0; i < 2; ++i) skip[i] = k == 0 ? skip_of_routes(args, channel[i]) : 0.0f;
    const bool last_route = k == args.routes - 1;

    const int chunks = route.chunks();
    bool behind = k > 0;  // whether other warps may still add to the sums of the route before
    for (; later < chunks; later += warps) {
      const int chunk = chunks - 1 - later;
      // Segments of a chunk are neighbours: the lane's own, and that of the records which it multiplies.
      const SegmentCursor here(route, chunk * kGpuSegments + q);
      const SegmentCursor column(route, chunk * kGpuSegments + g / 2);
      const int valid = here.template valid<kWhole>(route);
      RecordColumns<T, kEights> records;
      dts_walk.load(records, route, column);
      Two<T> x[kGpuSegmentSteps];
      load_steps<kWhole>(x, x_walk, route, here);
      GoutSteps<T> gout;
      gout.template load<kWhole>(args, place, route, here);
      StateFactors<T> factors;
      factors.load(args, B_walk, route, column, 0);
      const auto* const starts_of_chunk =
          reinterpret_cast<const KeptState<T>*>(starts.several_at<T>(k, chunk, 0, g));
      Two<KeptState<T>> start[2];
      for (int s = 0; s < 2; ++s) start[s] = read_two(starts_of_chunk + s * kGpuChannels);
      float gy[kGpuSegmentSteps][2];
      gout.convert(gy, args.gout_dtype == DType::kFloat32, valid);

      float dt[2 * kGpuProducts][2];
      weights.multiply(records, dt);
      float in[kGpuSegmentSteps][2];
      float steps[2] = {};  // sums over the segment
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          dt[t][i] = softplus_base2(dt[t][i]);
          // Steps of size zero leave the state as it is.
          if (t >= valid) dt[t][i] = 0;
          in[t][i] = kLn2 * dt[t][i] * x[t][i];
          steps[i] += dt[t][i];
        }
      }
      const int pixels = route.pixels_to(here.line, here.part);
      factor_gradients.start_walk(route, pixels);

      float P[kGpuSegmentSteps][2] = {}, Q[kGpuSegmentSteps][2] = {};
#pragma unroll 1
      for (int eight = 0; eight < args.states; eight += 8) {
        factor_gradients.start_states();
        const int pairs = min(8, args.states - eight) / 2;
#pragma unroll 1
        for (int pair = 0; pair < pairs; ++pair) {
          const int n = eight + 2 * pair;
          float B[2][2 * kGpuProducts], C[2][2 * kGpuProducts], A[2][2];
          factors.multiply(pair, q, B, C);
          if (pair == 3 && eight + 8 < args.states)
            factors.load(args, B_walk, route, column, eight + 8);
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            const float2 rates_of_state = rates[(n + s) * kPairs];
            A[s][0] = rates_of_state.x;
            A[s][1] = rates_of_state.y;
          }

          // What the segment does to the states that enter it, from there its states, and the gradient of C.
          float a[2][kGpuSegmentSteps][2], all_steps[4], h[2][kGpuSegmentSteps + 1][2];
          Affine ahead[4];
#pragma unroll
          for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
#pragma unroll
              for (int t = 0; t < kGpuSegmentSteps; ++t)
                a[s][t][i] = exp2_approx(dt[t][i] * A[s][i]);
              all_steps[2 * s + i] = exp2_approx(steps[i] * A[s][i]);
              float offset = in[0][i] * B[s][0];
#pragma unroll
              for (int t = 1; t < kGpuSegmentSteps; ++t)
                offset = fmaf(a[s][t][i], offset, in[t][i] * B[s][t]);
              ahead[2 * s + i] = {all_steps[2 * s + i], offset};
            }
          include_lanes<kGpuSegments, false>(ahead, q);
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            const float entered[2] = {start[s][0], start[s][1]};
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              // h[t] enters step t
              h[s][0][i] = from_lane_before<kGpuSegments, false>(ahead[2 * s + i](entered[i]), q,
                                                                 entered[i]);
#pragma unroll
              for (int t = 0; t < kGpuSegmentSteps; ++t)
                h[s][t + 1][i] = fmaf(a[s][t][i], h[s][t][i], in[t][i] * B[s][t]);
            }
            float to_C[2 * kGpuProducts] = {};  // sums over the lane's two channels
#pragma unroll
            for (int t = 0; t < kGpuSegmentSteps; ++t)
              to_C[t] = fmaf(gy[t][1], h[s][t + 1][1], gy[t][0] * h[s][t + 1][0]);
            factor_gradients.template add<true>(2 * pair + s, to_C);
          }
          const auto* const next = starts_of_chunk + min(n + 2, args.states - 2) * kGpuChannels;
          for (int s = 0; s < 2; ++s) start[s] = read_two(next + s * kGpuChannels);

          // And to the gradients that come back from behind it.
          Affine back[4];
#pragma unroll
          for (int s = 0; s < 2; ++s)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float offset = 0;
#pragma unroll
              for (int t = kGpuSegmentSteps - 1; t >= 0; --t)
                offset = a[s][t][i] * fmaf(C[s][t], gy[t][i], offset);
              back[2 * s + i] = {all_steps[2 * s + i], offset};
            }
          include_lanes<kGpuSegments, true>(back, q);
          const float4 taken = links.take(n / 2);
          const bool first = later == 0;
          const float returned[4] = {first ? 0 : taken.x, first ? 0 : taken.y, first ? 0 : taken.z,
                                     first ? 0 : taken.w};
          float left[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) left[i] = back[i](returned[i]);
          links.give(n / 2, q, 0, make_float4(left[0], left[1], left[2], left[3]));
          __syncwarp();  // the signal at once, not at the end of the turn

          float g_A[4];  // of state n, of state n + 1; over the segment, over ln 2
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            float to_B[2 * kGpuProducts] = {};  // sums over the lane's two channels
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              float c =
                  from_lane_before<kGpuSegments, true>(left[2 * s + i], q, returned[2 * s + i]);
              float sum = 0;
#pragma unroll
              for (int t = kGpuSegmentSteps - 1; t >= 0; --t) {
                const float gh = fmaf(C[s][t], gy[t][i], c);
                c = a[s][t][i] * gh;
                const float through = c * h[s][t][i];
                P[t][i] = fmaf(gh, B[s][t], P[t][i]);
                Q[t][i] = fmaf(A[s][i], through, Q[t][i]);
                sum = fmaf(dt[t][i], through, sum);
                to_B[t] = fmaf(gh, in[t][i], to_B[t]);
              }
              g_A[2 * s + i] = sum;
            }
            factor_gradients.template add<false>(2 * pair + s, to_B);
          }
          rate_gradients.add(n / 2, g_A, lane);
        }
        factor_gradients.store(eight, valid);
      }
      links.next_chunk();

      delta_gradient.load(dts_walk, route, column);
      // D gy + dt P, for gx; and the gradient of delta.
      struct {
        float2 values[kGpuSegmentSteps];
        __device__ __forceinline__ float2 read(int t) const { return values[t]; }
      } to_x;
      float g_delta[2 * kGpuProducts][2] = {};
#pragma unroll
      for (int t = 0; t < kGpuSegmentSteps; ++t) {
        float to[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float slope = 1 - exp2_approx(-dt[t][i]);  // sigmoid(delta)
          g_delta[t][i] = slope * fmaf(x[t][i], P[t][i], Q[t][i]);
          g_bias[i] += g_delta[t][i];
          if (k == 0) g_D[i] = fmaf(gy[t][i], x[t][i], g_D[i]);
          to[i] = fmaf(kLn2 * dt[t][i], P[t][i], skip[i] * gy[t][i]);
        }
        to_x.values[t] = make_float2(to[0], to[1]);
      }
      const SegmentSums<kWhole> own_sums(sum_walk, route, here, valid);
      if (behind) {
        __syncthreads();
        behind = false;
      }
      if (k > 0)
#pragma unroll
        for (int t = 0; t < kGpuSegmentSteps; ++t) {
          const float2 so_far = own_sums.read(t);
          to_x.values[t] = make_float2(to_x.values[t].x + so_far.x, to_x.values[t].y + so_far.y);
        }
      if (last_route)
        write_gx(args, place, route, pixels, valid, inside, to_x);
      else
        own_sums.write(to_x.values);
      delta_gradient.take(route, pixels, valid, g_delta);
    }
    later -= chunks;
    if (behind) __syncthreads();
    rate_gradients.store(sum_place, inside, q);
    sum_place.finish(exists, g_bias, g_D);
    delta_gradient.finish_route(sum_place, exists);
  }
}

}  // namespace

template <typename T>
bool packs_states_backward(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan) {
  return packed_states_data(args, plan) && packed_gradients(args);
}

template <typename T>
void launch_packed_states_backward(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan,
                                   int64_t images, GpuStream stream) {
  const LaunchShape shape = {plan.blocks_an_image() * images, static_cast<int>(plan.block),
                             plan.shared_bytes};
  dispatch_states(args, plan, [&]<int kEights, bool kWhole, bool kSolo>() {
    launch("ss2d packed_states_backward", packed_states_backward_kernel<T, kEights, kWhole, kSolo>,
           shape, stream, args);
  });
}

template bool packs_states_backward(const BackwardArguments<Float16>&, const Ss2dGpuPlan&);
template bool packs_states_backward(const BackwardArguments<BFloat16>&, const Ss2dGpuPlan&);
template void launch_packed_states_backward(const BackwardArguments<Float16>&, const Ss2dGpuPlan&,
                                            int64_t, GpuStream);
template void launch_packed_states_backward(const BackwardArguments<BFloat16>&, const Ss2dGpuPlan&,
                                            int64_t, GpuStream);

}  // namespace linescan
