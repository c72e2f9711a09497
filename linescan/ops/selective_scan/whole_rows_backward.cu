// Selective scan on the GPU with one state, half types and rows that a warp has as a whole, backward.
//
//   Equations, shapes and sums as in backward.cu.
//
// A lane has kWholeItems neighbouring steps of a row; lanes behind its end have steps that change nothing. Each warp takes
// args.whole_rows of the block's rows at a time: as one run of memory they come to shared memory while those before are worked
// on, and the gradients of u and delta take their place there, to leave the same way. Nothing is handed from tile to tile, and no
// state is known in advance: the walk starts in front of the row.
//
// Sums over rows (B, C) stay in a lane's registers while its warp meets the rows in turn, then go over the block's warps and the
// blocks; sums over steps (A, D, delta_bias) over the lanes. Every order is fixed by the plan.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_one_state_back.cuh"
#include "linescan/ops/selective_scan/gpu_row_runs.cuh"

namespace linescan {
namespace {

// Rows of a warp in shared memory. Behind them the steps of a lane that has none: softplus of minus infinity, and its
// derivative, are zero, and so is all that comes of them.
template <typename T, typename G>
struct RowStage {
  T *u, *delta;
  G* gradient;
  int idle;

  __device__ __forceinline__ RowStage(const SelectiveScanGpuArguments& args, int warp, int turn) {
    const int stage = warp * 2 + turn % 2;
    const auto array = [&](int i) {
      return shared_memory() + args.shared.sequence[i] + stage * args.inputs[i].stage;
    };
    u = reinterpret_cast<T*>(array(0));
    delta = reinterpret_cast<T*>(array(1));
    gradient = reinterpret_cast<G*>(array(3));
    idle = args.whole_rows * static_cast<int>(args.length);
  }
  __device__ __forceinline__ void begin(int lane, bool some_gradient) const {
    if (lane < kWholeItems) {
      u[idle + lane] = from_float<T>(0);
      delta[idle + lane] = from_float<T>(-INFINITY);
      gradient[idle + lane] = from_float<G>(0);
    }
    if (!some_gradient)
      for (int i = lane; i < idle; i += kGpuWarp) gradient[i] = from_float<G>(0);
  }
};

template <typename T, typename G>
__global__ void __launch_bounds__(kOneWarps* kGpuWarp, 4)
    whole_rows_backward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const OneStatePlace<kGpuWarp, kWholeItems> place(args);
  const int lane = place.lane, length = static_cast<int>(args.length);
  const bool inside = lane * kWholeItems < length;
  auto* const rows = reinterpret_cast<OneStateRow*>(shared_memory());
  const GpuSequence &u = args.inputs[0], &delta = args.inputs[1], &gradient = args.inputs[3];
  const auto run = [&](const GpuSequence& q, int first) {
    return RowRun{q.data + place.item * q.batch + (place.channel + first) * q.channel,
                  min(args.whole_rows, place.rows - first), length, lane};
  };
  const auto fetch = [&](int first, int turn) {
    const RowStage<T, G> to(args, place.warp, turn);
    if (first < place.rows) {
      run(u, first).fetch(u, to.u);
      run(delta, first).fetch(delta, to.delta);
      if (gradient.data) run(gradient, first).fetch(gradient, to.gradient);
    }
    commit_copies();
  };
  int first = place.warp * args.whole_rows;
  fetch(first, 0);
  for (int turn = 0; turn < 2; ++turn)
    RowStage<T, G>(args, place.warp, turn).begin(lane, gradient.data);
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp)
    rows[r] = one_state_row(args, place.item, place.channel + r, args.last_state);
  float B[kWholeItems], C[kWholeItems], gB[kWholeItems] = {}, gC[kWholeItems] = {};
  to_floats(B, load_factor<T, kWholeItems>(args, 0, place, 0));
  to_floats(C, load_factor<T, kWholeItems>(args, 1, place, 0));
  // Rows of [batch, channels].
  const int64_t first_row = int64_t{place.item} * args.channels + place.channel;
  float* const row_sums[] = {args.A_sums, args.D_sums, args.bias_sums, nullptr};
  constexpr int kLanesOfSum = kGpuWarp / 4;
  float* const row_sum = lane % kLanesOfSum == 0 ? row_sums[lane / kLanesOfSum] : nullptr;
  __syncthreads();

#pragma unroll 1
  for (int turn = 0; first < place.rows; first += kOneWarps * args.whole_rows, ++turn) {
    fetch(first + kOneWarps * args.whole_rows, turn + 1);
    wait_copies<1>();
    __syncwarp();
    const RowStage<T, G> here(args, place.warp, turn);
    const int count = min(args.whole_rows, place.rows - first);
#pragma unroll 1
    for (int r = 0; r < count; ++r) {
      const int at = inside ? r * length + lane * kWholeItems : here.idle;
      const OneStateRow own = rows[first + r];
      float x[kWholeItems], gy[kWholeItems], dt[kWholeItems], slope[kWholeItems];
#pragma unroll
      for (int j = 0; j < kWholeItems; ++j) {
        dt[j] = to_float(here.delta[at + j]) + own.bias, slope[j] = 1;
        x[j] = to_float(here.u[at + j]);
        gy[j] = to_float(here.gradient[at + j]);
      }
      if (args.softplus)
#pragma unroll
        for (int j = 0; j < kWholeItems; ++j)
          dt[j] = softplus_and_slope<sizeof(T) == 2>(dt[j], slope[j]);
      else if (!inside)
#pragma unroll
        for (int j = 0; j < kWholeItems; ++j) dt[j] = slope[j] = 0;
      const float start = args.initial_state ? args.initial_state[first_row + first + r] : 0;
      LaneSums sums;
      const float leaves =
          walk_back<kGpuWarp>(own, start, lane, x, gy, B, C, dt, slope, gB, gC, sums);
      if (args.initial_gradient && lane == 0) args.initial_gradient[first_row + first + r] = leaves;
      if (inside)
#pragma unroll
        for (int j = 0; j < kWholeItems; ++j) {
          here.u[at + j] = from_float<T>(dt[j]);
          here.delta[at + j] = from_float<T>(slope[j]);
        }
      const float sum = add_lanes<kGpuWarp>(sums, lane);
      if (row_sum) row_sum[first_row + first + r] = sum;
    }
    __syncwarp();
    run(args.gu, first).store(args.gu, here.u);
    run(args.gdelta, first).store(args.gdelta, here.delta);
    __syncwarp();  // the stage is free
  }

  // Over the block's warps, in the rows' place: [warps, 2, length]
  wait_copies<0>();
  __syncthreads();
  float* const sums = reinterpret_cast<float*>(shared_memory() + args.shared.sequence[0]);
  if (inside)
#pragma unroll
    for (int j = 0; j < kWholeItems; ++j) {
      float* const at = sums + place.warp * 2 * length + lane * kWholeItems + j;
      at[0] = gB[j];
      at[length] = gC[j];
    }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * length; i += kOneWarps * kGpuWarp) {
    const int which = i / length, t = i - which * length;
    const GpuFactorGradient& f = args.sums[which];
    if (f.data == nullptr) continue;
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kOneWarps; ++warp) total += sums[warp * 2 * length + i];
    const int item = f.part != 0 ? place.item - args.first_batch : place.item;
    store_float(f.data + place.part * f.part + item * f.batch + place.group * f.group + t * f.step,
                f.dtype, total);
  }
}

}  // namespace

void launch_whole_rows_backward(const SelectiveScanGpuArguments& args,
                                const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  // Zeros in place of a gradient that there is not have room as the data's type, whatever out is.
  const DType data = args.inputs[0].dtype, gradient = args.inputs[3].data ? out : data;
  dispatch_types(data, gradient, [&]<typename T, typename G>() {
    if constexpr (sizeof(T) == 2)
      launch("selective_scan backward", whole_rows_backward<T, G>, launch_shape(args, plan), stream,
             args);
  });
}

}  // namespace linescan
