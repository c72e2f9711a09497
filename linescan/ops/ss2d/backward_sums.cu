// ss2d, backward: adds up what the blocks left (gpu_backward_sums.cuh), always in the same order.

#include <algorithm>

#include "linescan/ops/ss2d/gpu_backward_sums.cuh"
#include "linescan/ops/ss2d/gpu_delta_gradient.cuh"

namespace linescan {
namespace {

constexpr int kThreads = 256;
constexpr int kSumWarps = 16;  // parts of the parts
constexpr int kShares = 8;
constexpr int64_t kManyPlaces = int64_t{1} << 19;

// kPack numbers a thread, next to each other in every group; kParts threads have a share of the groups each.
template <typename T, typename Number, int kPack, int kParts>
__global__ void __launch_bounds__(kThreads)
    sum_groups_kernel(const Number* sums, int64_t groups, int64_t count, T* result) {
  constexpr int kPlaces = kThreads / kParts;
  const int place = threadIdx.x % kPlaces, share = threadIdx.x / kPlaces;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kPlaces + place) * kPack;
  float sum[kPack] = {};
  if (i < count)
#pragma unroll 8
    for (int64_t group = share; group < groups; group += kParts) {
      const auto pack = *reinterpret_cast<const Pack<Number, kPack>*>(sums + group * count + i);
#pragma unroll
      for (int n = 0; n < kPack; ++n) sum[n] += to_float(pack.values[n]);
    }
  if constexpr (kParts > 1) {
    __shared__ float shares[kParts - 1][kPack][kPlaces];
    if (share > 0)
#pragma unroll
      for (int n = 0; n < kPack; ++n) shares[share - 1][n][place] = sum[n];
    __syncthreads();
    if (share > 0) return;
#pragma unroll
    for (int other = 0; other + 1 < kParts; ++other)
#pragma unroll
      for (int n = 0; n < kPack; ++n) sum[n] += shares[other][n][place];
  }
  if (i >= count) return;
  Pack<T, kPack> rounded;
#pragma unroll
  for (int n = 0; n < kPack; ++n) rounded.values[n] = from_float<T>(sum[n]);
  *reinterpret_cast<Pack<T, kPack>*>(result + i) = rounded;
}

// result [count] = the sum over the groups of sums [groups, count].
template <typename T, typename Number>
void sum_groups(const char* what, const Number* sums, int64_t groups, int64_t count, T* result,
                GpuStream stream) {
  const auto run = [&]<int kPack>() {
    // Where numbers are few and groups many, more threads have more of them under way.
    const int64_t places = (count + kPack - 1) / kPack;
    const bool shared = groups >= 2 * kShares && places <= kManyPlaces;
    const int64_t a_block = shared ? kThreads / kShares : kThreads;
    launch(what,
           shared ? sum_groups_kernel<T, Number, kPack, kShares>
                  : sum_groups_kernel<T, Number, kPack, 1>,
           {(places + a_block - 1) / a_block, kThreads}, stream, sums, groups, count, result);
  };
  const auto aligned = [](const void* data, int64_t bytes) {
    return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
  };
  constexpr int kMost = 16 / sizeof(float) < 16 / sizeof(Number) ? 8 : 4;
  constexpr int64_t kBytes = kMost * sizeof(Number), kOut = kMost * sizeof(T);
  if (count % kMost == 0 && aligned(sums, kBytes) && aligned(result, kOut))
    run.template operator()<kMost>();
  else
    run.template operator()<1>();
}

// What sum_factors adds up for one route, in words of two numbers: of each pixel those of dts, or a gap where their gradient is found
// elsewhere, and of B and C. A block has so many pixels, whose words meet in shared memory: lanes then write neighbouring ones.
struct FactorBlocks {
  static constexpr int kStaged = 3072;  // words of a block, unless a single pixel has more
  static constexpr int64_t kEnoughBlocks = 1024;  // for all multiprocessors
  int dts, all;                                   // words of a pixel
  int pixels;
  bool with_dts;

  FactorBlocks(int rank, int states, int64_t pixels_of_routes, bool with_dts)
      : dts(rank / 2), all(dts + states), with_dts(with_dts) {
    const int64_t few = round_up(ceil_div(pixels_of_routes, kEnoughBlocks), int64_t{4});
    const int most = static_cast<int>(std::clamp<int64_t>(few, 1, std::max(1, kStaged / all)));
    pixels = most > 4 ? most - most % 4 : most;
  }
  int64_t bytes() const { return int64_t{pixels} * all * int64_t{sizeof(uint32_t)}; }
};

// kWords words of each of the groups, `distance` apart: their sums, to[place(i)].
template <typename T, int kWords, class Place>
__device__ __forceinline__ void sum_words(const uint32_t* from, int groups, int64_t distance,
                                          uint32_t* to, const Place& place) {
  float2 sums[kWords] = {};
#pragma unroll 6  // what multiples of 96 channels have
  for (int group = 0; group < groups; ++group) {
    const auto pack = *reinterpret_cast<const Pack<uint32_t, kWords>*>(from + group * distance);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const Two<T> both = {pack.values[i]};
      sums[i] = make_float2(sums[i].x + both[0], sums[i].y + both[1]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWords; ++i) to[place(i)] = pair_from_floats<T>(sums[i].x, sums[i].y);
}

// A thread has kFactors words of B and C, or kDts of dts; neighbouring blocks have the routes of the same pixels.
template <typename T, int kFactors, int kDts>
__global__ void __launch_bounds__(kThreads)
    sum_factors_kernel(Ss2dGpuArguments<T> args, DeltaGradient<T> gradient, FactorBlocks own,
                       T* gprojection) {
  auto* const staged = reinterpret_cast<uint32_t*>(shared_memory());
  BlockNumber number;
  const int k = number.take(args.routes);
  const int64_t pixels = gradient.slots * gradient.pixels;  // of a group
  const int64_t first = static_cast<int64_t>(number.rest) * own.pixels;
  const int count = static_cast<int>(min(static_cast<int64_t>(own.pixels), pixels - first));
  const int64_t at = k * gradient.groups * pixels + first;
  const int factors = count * args.states, dts = own.with_dts ? count * own.dts : 0;
  for (int i = threadIdx.x; i < factors / kFactors + dts / kDts; i += kThreads) {
    if (i < factors / kFactors) {
      const int word = i * kFactors, pixel = word / args.states;
      uint32_t* const to = staged + pixel * own.all + own.dts + word - pixel * args.states;
      sum_words<T, kFactors>(gradient.factors + at * args.states + word, gradient.groups,
                             pixels * args.states, to, [](int j) { return j; });
    } else {
      const int word = (i - factors / kFactors) * kDts;
      const auto* const from =
          reinterpret_cast<const uint32_t*>(gradient.dts) + at * own.dts + word;
      sum_words<T, kDts>(from, gradient.groups, pixels * own.dts, staged, [&](int j) {
        const int pixel = (word + j) / own.dts;
        return pixel * own.all + word + j - pixel * own.dts;
      });
    }
  }
  __syncthreads();
  const int64_t row = args.first_image * gradient.pixels + first;
  for (int i = threadIdx.x; i < count * own.all; i += kThreads) {
    const int pixel = i / own.all, word = i - pixel * own.all;
    T* const record = gprojection + ((row + pixel) * args.routes + k) * args.record;
    if (own.with_dts || word >= own.dts) reinterpret_cast<uint32_t*>(record)[word] = staged[i];
  }
}

struct ParameterTargets {
  void* dt_weight;  // T, or float32
  bool float_weight;
  float *dt_bias, *A_log, *D;
  const float* A_log_value;
  int channels, rank, states, routes;  // rank: of what ParameterSums has
};
// dt_weight's gradient from elsewhere, [parts, count].
struct WeightParts {
  const float* sums;
  int64_t parts, count;
};

// Whether the warps of a block share the parts of 32 numbers, or have 32 numbers each.
__host__ __device__ __forceinline__ bool shares_parts(int64_t parts) {
  return parts >= 2 * kSumWarps;
}

// sums [parts, routes * channels * numbers]; blocks from `blocks` on likewise for the parts of dt_weight.
template <typename T>
__global__ void __launch_bounds__(32 * kSumWarps)
    sum_parameters_kernel(const float* sums, int64_t parts, ParameterTargets to, int64_t blocks,
                          WeightParts weights) {
  __shared__ float shares[kSumWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, numbers = to.rank + to.states + 2;
  const bool of_weights = blockIdx.x >= blocks;
  if (of_weights) sums = weights.sums, parts = weights.parts;
  const int64_t count =
      of_weights ? weights.count : static_cast<int64_t>(to.routes) * to.channels * numbers;
  const bool shared = shares_parts(parts);
  const int64_t block = blockIdx.x - (of_weights ? blocks : 0);
  const int64_t i = (shared ? block : block * kSumWarps + warp) * 32 + lane;
  float sum = 0;
  if (i < count)
    for (int64_t part = shared ? warp : 0; part < parts; part += shared ? kSumWarps : 1)
      sum += sums[part * count + i];
  if (shared) {
    shares[warp][lane] = sum;
    __syncthreads();
    if (warp > 0) return;
    sum = 0;
    for (int w = 0; w < kSumWarps; ++w) sum += shares[w][lane];
  }
  if (i >= count) return;

  if (of_weights) {
    static_cast<T*>(to.dt_weight)[i] = from_float<T>(sum);
    return;
  }
  const int64_t row = i / numbers;  // route and channel
  const int number = static_cast<int>(i % numbers);
  if (number < to.rank) {
    const int64_t at = row * to.rank + number;
    if (to.float_weight)
      static_cast<float*>(to.dt_weight)[at] = sum;
    else
      static_cast<T*>(to.dt_weight)[at] = from_float<T>(sum);
  } else if (number < to.rank + to.states) {
    const int64_t at = row * to.states + number - to.rank;
    to.A_log[at] = sum * -exp2_approx(kLog2e * to.A_log_value[at]);
  } else if (number == to.rank + to.states) {
    to.dt_bias[row] = sum;
  } else if (row < to.channels) {  // sum of gy x: the same for all routes, from the first
    for (int k = 0; k < to.routes; ++k) to.D[k * static_cast<int64_t>(to.channels) + row] = sum;
  }
}

}  // namespace

BackwardWorkspace::BackwardWorkspace(const Ss2dSize& size, const Ss2dGpuPlan& plan,
                                     std::byte* workspace) {
  const Ss2dGpuWorkspace parts = gpu_workspace(size, plan);
  auto* next = reinterpret_cast<float*>(workspace);
  const auto take = [&](float*& part, int64_t count) {
    part = next;
    next += count;
  };
  take(entering, plan.pieces_slice * parts.entering);
  take(returning, plan.pieces_slice * parts.returning);
  take(segments, plan.pieces_slice * parts.segments);
  take(carries, plan.slice * parts.carries);
  take(starts, plan.slice * parts.starts);
  take(records, parts.records_of(plan.slice));
  weights = next;  // the general kernel has both for its parameters
  parameters = next + parts.weights;
}

template <typename T, typename Number>
void sum_records(const Ss2dGpuArguments<T>& args, const RecordSums<Number>& sums, T* gprojection,
                 GpuStream stream) {
  const int64_t image = static_cast<int64_t>(args.height) * args.width * args.routes * args.record;
  sum_groups("ss2d sum_records", sums.data, args.channel_groups, sums.slots * image,
             gprojection + args.first_image * image, stream);
}

template <typename T>
void sum_factors(const Ss2dGpuArguments<T>& args, const DeltaGradient<T>& gradient, T* gprojection,
                 GpuStream stream) {
  constexpr int kWide = 4;
  // Packs of words are aligned, and those of a pixel or of a block whole ones.
  const bool wide = args.states % kWide == 0;
  const int64_t pixels = gradient.slots * gradient.pixels;
  const FactorBlocks blocks(args.rank, args.states, pixels * args.routes, gradient.data == nullptr);
  const bool wide_dts = pixels * blocks.dts % kWide == 0 && blocks.pixels % kWide == 0;
  const auto kernel =
      wide ? (wide_dts ? sum_factors_kernel<T, kWide, kWide> : sum_factors_kernel<T, kWide, 1>)
           : sum_factors_kernel<T, 1, 1>;
  launch("ss2d sum_factors", kernel,
         {ceil_div(pixels, int64_t{blocks.pixels}) * args.routes, kThreads, blocks.bytes()}, stream,
         args, gradient, blocks, gprojection);
}

template <typename T>
void sum_parameters(const Ss2dGpuArguments<T>& args, const ParameterSums& sums, int64_t count,
                    const float* weights, int64_t weight_parts, const Ss2dGradients& gradients,
                    GpuStream stream) {
  const ParameterTargets to = {gradients.dt_weight.data,
                               args.float_weight != nullptr,
                               gradients.dt_bias.as<float>(),
                               gradients.A_log.as<float>(),
                               gradients.D.as<float>(),
                               args.A_log,
                               args.channels,
                               sums.rank,
                               args.states,
                               args.routes};
  const int64_t rows = static_cast<int64_t>(args.routes) * args.channels;
  const WeightParts parts = {weights, weight_parts, weights ? rows * args.rank : 0};
  const auto blocks_of = [](int64_t numbers, int64_t parts) {
    return ceil_div(numbers, int64_t{shares_parts(parts) ? 32 : 32 * kSumWarps});
  };
  const int64_t blocks = blocks_of(rows * sums.numbers(args), count);
  launch("ss2d sum_parameters", sum_parameters_kernel<T>,
         {blocks + blocks_of(parts.count, weight_parts), 32 * kSumWarps}, stream, sums.data, count,
         to, blocks, parts);
}

template void sum_records(const Ss2dGpuArguments<float>&, const RecordSums<float>&, float*,
                          GpuStream);
template void sum_records(const Ss2dGpuArguments<Float16>&, const RecordSums<float>&, Float16*,
                          GpuStream);
template void sum_records(const Ss2dGpuArguments<BFloat16>&, const RecordSums<float>&, BFloat16*,
                          GpuStream);
template void sum_records(const Ss2dGpuArguments<BFloat16>&, const RecordSums<BFloat16>&, BFloat16*,
                          GpuStream);
template void sum_records(const Ss2dGpuArguments<Float16>&, const RecordSums<Float16>&, Float16*,
                          GpuStream);
template void sum_factors(const Ss2dGpuArguments<Float16>&, const DeltaGradient<Float16>&, Float16*,
                          GpuStream);
template void sum_factors(const Ss2dGpuArguments<BFloat16>&, const DeltaGradient<BFloat16>&,
                          BFloat16*, GpuStream);
template void sum_parameters(const Ss2dGpuArguments<float>&, const ParameterSums&, int64_t,
                             const float*, int64_t, const Ss2dGradients&, GpuStream);
template void sum_parameters(const Ss2dGpuArguments<Float16>&, const ParameterSums&, int64_t,
                             const float*, int64_t, const Ss2dGradients&, GpuStream);
template void sum_parameters(const Ss2dGpuArguments<BFloat16>&, const ParameterSums&, int64_t,
                             const float*, int64_t, const Ss2dGradients&, GpuStream);

}  // namespace linescan
