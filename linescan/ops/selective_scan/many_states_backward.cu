// Selective scan on the GPU with several states, backward, for sequences that lie along the length. A
// block has 32 rows, a lane each in every warp; the warps divide the states, and each prepares and
// finishes some of a tile's steps for all of them. The forward pass or a first kernel (state_lanes_forward.cu) leaves
// the states at the starts of the tiles; this one walks them from the last one to the first.
//
//   Equations and shapes as in backward.cu.
//
// Sums over rows (B, C): a state's two times 16 addends over the lanes of its warp (AddendSums), blocks
// and batch by device_code/ordered_sums.cu; sums over states through shared memory. All orders are fixed.
// Reference: reference.cpp; derivation in README.md.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/device_code/softplus.cuh"
#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_factor_batch.cuh"
#include "linescan/ops/selective_scan/gpu_factors.cuh"
#include "linescan/ops/selective_scan/gpu_row_steps.cuh"
#include "linescan/ops/selective_scan/gpu_write.cuh"

namespace linescan {
namespace {

constexpr int kMaxThreads = 192;
constexpr int kQuads = kGpuItems / 4;
template <typename T>
using Factors = FactorBatch<T, true, 1, 2 * kGpuItems>;

// What a state needs before its steps can begin; loaded while the state before it is at work.
struct Ahead {
  float A, h;  // h: at the tile's start
  float k, A_sum;
};

__device__ __forceinline__ unsigned char* address_of(const GpuSequence& q, const GpuPlace<1>& place,
                                                     int64_t t) {
  return q.data + place.item * q.batch + place.channel * q.channel + t * q.step;
}

// Some steps of a tile: dt and dt u, for all of the block's warps.
struct Quad {
  int64_t t;
  int count;  // steps that exist
};
template <typename T>
__device__ __forceinline__ void prepare_quad(const SelectiveScanGpuArguments& args,
                                             const GpuPlace<1>& place, const Quad& quad, float bias,
                                             float* to) {
  const auto x = load_items<T, 4>(address_of(args.inputs[1], place, quad.t), args.inputs[1].step,
                                  args.inputs[1].unit, quad.count);
  const auto u = load_items<T, 4>(address_of(args.inputs[0], place, quad.t), args.inputs[0].step,
                                  args.inputs[0].unit, quad.count);
  float dt[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    dt[j] = x[j] + bias;
    if (args.softplus) dt[j] = softplus(dt[j]);
    if (j >= quad.count) dt[j] = 0;  // a step that changes nothing
  }
  *reinterpret_cast<float4*>(to) = make_float4(dt[0], dt[1], dt[2], dt[3]);
  *reinterpret_cast<float4*>(to + kGpuExchange) =
      make_float4(dt[0] * u[0], dt[1] * u[1], dt[2] * u[2], dt[3] * u[3]);
}

template <typename T, typename G>
__global__ void __launch_bounds__(kMaxThreads, 2)
    many_states_backward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const GpuPlace<1> place(args);
  const bool exists = place.exists();
  unsigned char* shared = shared_memory();
  float* steps = reinterpret_cast<float*>(shared + args.shared.sequence[0]);  // dt, du, gy
  float* own_steps = steps + place.lane * kGpuSegmentPitch;
  float* exchange = reinterpret_cast<float*>(shared + args.shared.exchange);
  float* own_exchange = exchange + place.warp * args.exchange;
  float* factors = own_exchange;  // which the warp fills after its last state
  static_assert(2 * kManyBatchFloats <= 2 * kGpuExchange);
  const GpuSequence &u = args.inputs[0], &delta = args.inputs[1], &gradient = args.inputs[3];
  // What the lane's row hands from tile to tile for a state: its gradient, and the sum for A.
  float2* carries = reinterpret_cast<float2*>(shared + args.shared.carries) + place.lane;
  for (int n = place.share; n < args.states; n += args.shares)
    carries[n * kGpuWarp] =
        make_float2(args.last_state && exists ? args.last_state[place.states_at(args) + n] : 0, 0);
  const float D = args.D && exists ? args.D[place.channel] : 0;
  const float bias = args.delta_bias && exists ? args.delta_bias[place.channel] : 0;
  const auto address = [&](const GpuSequence& q, int64_t t) { return address_of(q, place, t); };
  // Where this lane's sums of a state go (AddendSums).
  const GpuFactorGradient& sums = args.sums[AddendSums<T>::of_C(place.lane)];
  const int sums_step = AddendSums<T>::step(place.lane);
  unsigned char* sums_to =
      sums.data == nullptr
          ? nullptr
          : sums.data + place.part * sums.part +
                (sums.part != 0 ? place.item - args.first_batch : place.item) * sums.batch +
                place.group * sums.group;
  const int64_t sums_move = args.shares * sums.state;  // from one state of the warp to the next one
  const bool float_sums = sums.dtype == DType::kFloat32;

  float D_sum = 0, bias_sum = 0;
  for (int tile = args.tiles - 1; tile >= 0; --tile) {
    const int64_t start = int64_t{tile} * kGpuItems;
    const int rest = static_cast<int>(min(args.length - start, int64_t{kGpuItems}));
    Factors<T> batch(args, place, tile, place.share, args.shares);
    for (int quad = place.warp; quad < kQuads; quad += args.warps) {
      const int64_t t = start + 4 * quad;
      const int count = exists ? max(0, min(rest - 4 * quad, 4)) : 0;
      const auto gy = load_items<G, 4>(address(gradient, t), gradient.step, gradient.unit,
                                       gradient.data ? count : 0);
      float* to = own_steps + 4 * quad;
      prepare_quad<T>(args, place, {t, count}, bias, to);
      *reinterpret_cast<float4*>(to + 2 * kGpuExchange) = make_float4(gy[0], gy[1], gy[2], gy[3]);
    }
    // The state ahead: A and h of all channels lie state by state.
    const int64_t ahead_step = int64_t{args.shares} * args.channels;
    const float* ahead_A = args.rates + int64_t{place.share} * args.channels + place.channel;
    const float* ahead_h = tile > 0 ? tile_state(args, place, tile, place.share) : args.rates;
    const float2* ahead_carry = carries + place.share * kGpuWarp;
    int ahead_n = place.share;
    const auto look_ahead = [&] {
      Ahead next{0, 0, 0, 0};
      if (ahead_n < args.states) {
        const float2 carry = *ahead_carry;
        next.k = carry.x, next.A_sum = carry.y;
      }
      if (ahead_n < args.states && exists) {
        next.A = *ahead_A;
        if (tile > 0)
          next.h = *ahead_h;
        else if (args.initial_state)
          next.h = args.initial_state[place.states_at(args) + ahead_n];
      }
      ahead_A += ahead_step, ahead_h += ahead_step;
      ahead_carry += args.shares * kGpuWarp, ahead_n += args.shares;
      return next;
    };
    Ahead ahead = look_ahead();
    __syncthreads();

    // The gradient of out stays where it is: registers are better used for the rest.
    const float* const own_gy = own_steps + 2 * kGpuExchange;
    RowSteps row;
    read_steps(own_steps, row.dt), read_steps(own_steps + kGpuExchange, row.du);
    const bool sums_wanted = sums_to != nullptr && sums_step < rest;
    unsigned char* tile_sums = sums_to + (start + sums_step) * sums.step + place.share * sums.state;
    float2* own_carry = carries + place.share * kGpuWarp;
    int parity = 0;
    for (int first = place.share; first < args.states;
         first += batch.kStates * args.shares, parity ^= 1) {
      float* at = factors + parity * kManyBatchFloats;
      batch.unpack(at, place.lane);
      batch = Factors<T>(args, place, tile, first + batch.kStates * args.shares, args.shares);
      __syncwarp();
      const int end = min(args.states, first + batch.kStates * args.shares);
#pragma unroll 1
      for (int n = first; n < end; n += args.shares, at += batch.kFloats) {
        const Ahead now = ahead;
        ahead = look_ahead();
        float k = now.k, A_sum;
        const float sum = row.walk<T>(now.A, now.h, k, A_sum, at, own_gy, place.lane);
        *own_carry = make_float2(k, now.A_sum + A_sum);
        own_carry += args.shares * kGpuWarp;
        if (sums_wanted) {
          if (float_sums)
            *reinterpret_cast<float*>(tile_sums) = sum;
          else
            store_float(tile_sums, sums.dtype, sum);
        }
        tile_sums += sums_move;
      }
    }
    __syncwarp();
    give_items(row.through_B, own_exchange, place.lane);
    give_items(row.through_a, own_exchange + kGpuExchange, place.lane);
    __syncthreads();

    for (int quad = place.warp; quad < kQuads; quad += args.warps) {
      const int64_t t = start + 4 * quad;
      const int count = exists ? max(0, min(rest - 4 * quad, 4)) : 0;
      const auto x = load_items<T, 4>(address(delta, t), delta.step, delta.unit, count);
      const auto input = load_items<T, 4>(address(u, t), u.step, u.unit, count);
      const int offset = place.lane * kGpuSegmentPitch + 4 * quad;
      float from_B[4] = {}, from_a[4] = {}, gu[4], gdelta[4];
#pragma unroll 2
      for (int warp = 0; warp < args.warps; ++warp) {
        const float* from = exchange + warp * args.exchange + offset;
        const float4 four_B = *reinterpret_cast<const float4*>(from);
        const float4 four_a = *reinterpret_cast<const float4*>(from + kGpuExchange);
        from_B[0] += four_B.x, from_B[1] += four_B.y, from_B[2] += four_B.z, from_B[3] += four_B.w;
        from_a[0] += four_a.x, from_a[1] += four_a.y, from_a[2] += four_a.z, from_a[3] += four_a.w;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float own_dt = steps[offset + j], own_gy = steps[2 * kGpuExchange + offset + j];
        gu[j] = fmaf(D, own_gy, own_dt * from_B[j]);
        gdelta[j] = fmaf(input[j], from_B[j], from_a[j]);
        if (args.softplus) gdelta[j] *= softplus_slope(x[j] + bias);
        if (j >= count) continue;
        D_sum = fmaf(own_gy, input[j], D_sum);
        bias_sum += gdelta[j];
      }
      if (args.gu.data) store_items<T>(address(args.gu, t), args.gu.step, args.gu.unit, count, gu);
      if (args.gdelta.data)
        store_items<T>(address(args.gdelta, t), args.gdelta.step, args.gdelta.unit, count, gdelta);
    }
  }

  if (exists)
    for (int n = place.share; n < args.states; n += args.shares) {
      const int64_t at = place.states_at(args) + n;
      if (args.initial_gradient) args.initial_gradient[at] = carries[n * kGpuWarp].x;
      if (args.A_sums) args.A_sums[at] = carries[n * kGpuWarp].y;
    }
  __syncthreads();
  own_exchange[place.lane] = D_sum, own_exchange[kGpuWarp + place.lane] = bias_sum;
  __syncthreads();
  if (place.warp > 0 || !exists) return;
  for (int warp = 1; warp < args.warps; ++warp) {
    D_sum += exchange[warp * args.exchange + place.lane];
    bias_sum += exchange[warp * args.exchange + kGpuWarp + place.lane];
  }
  const int64_t row = int64_t{place.item} * args.channels + place.channel;
  if (args.D_sums) args.D_sums[row] = D_sum;
  if (args.bias_sums) args.bias_sums[row] = bias_sum;
}

}  // namespace

void launch_many_states_backward(const SelectiveScanGpuArguments& args,
                                 const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    launch("selective_scan backward", many_states_backward<T, G>, launch_shape(args, plan), stream,
           args);
  });
}

}  // namespace linescan
