// Selective scan on the GPU with one state, forward; and the first kernel of its backward pass, which
// leaves nothing but the states at the start of every tile (no `out`).
//
//   Equations and shapes as in forward.cu.
//
// Lanes lie along the length (gpu_one_state.cuh): they scan their steps from zero, learn by shuffles what
// enters them, and walk again.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_one_state.cuh"

namespace linescan {
namespace {

template <typename T, typename G, int kLanes>
__global__ void __launch_bounds__(kOneWarps* kGpuWarp, 5)
    one_state_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  using Place = OneStatePlace<kLanes>;
  const Place place(args);
  OneStateRow* rows = reinterpret_cast<OneStateRow*>(shared_memory());
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp)
    rows[r] = one_state_row(args, place.item, place.channel + r, args.initial_state);
  __syncthreads();
  const GpuSequence &u = args.inputs[0], &delta = args.inputs[1];

  struct Next {
    GpuRawItems<T, kOneItems> u, delta;
  };
  // The last tile's states start nothing.
  const int tiles = args.out.data ? args.tiles : args.tiles - 1;
  for (int tile = 0; tile < tiles; ++tile) {
    const int64_t start = place.start(tile);
    const int steps = place.count(args, tile);
    float B[kOneItems], C[kOneItems];
    load_factor<T>(args.factors[0], place, start, steps, B);
    load_factor<T>(args.factors[1], place, start, steps, C);
    const unsigned char *u_from = place.address(u, start),
                        *delta_from = place.address(delta, start);
    const auto fetch = [&](int r) {
      const int count = r < place.rows ? steps : 0;
      const Next rows_items{load_items<T, kOneItems>(u_from, u.step, u.unit, count),
                            load_items<T, kOneItems>(delta_from, delta.step, delta.unit, count)};
      u_from += Place::kStride * u.channel, delta_from += Place::kStride * delta.channel;
      return rows_items;
    };
    float* starts = tile > 0 && args.tile_states ? place.tile_states(args, tile) : nullptr;
    unsigned char* out = place.address(args.out, start);
    Next next = fetch(place.row);
#pragma unroll 1
    for (int first = 0; first < place.rows; first += Place::kStride) {
      const int r = first + place.row;
      const bool exists = r < place.rows;
      const Next now = next;
      if (first + Place::kStride < place.rows) next = fetch(r + Place::kStride);
      const OneStateRow own = exists ? rows[r] : OneStateRow{};
      const float rate = own.A * kLog2e;
      float dt[kOneItems], a[kOneItems], b[kOneItems], sum_dt = 0;
      Affine all{1, 0};
#pragma unroll
      for (int j = 0; j < kOneItems; ++j) dt[j] = now.delta[j] + own.bias;
      if (args.softplus)
#pragma unroll
        for (int j = 0; j < kOneItems; ++j) dt[j] = softplus(dt[j]);
      if (steps < kOneItems)
#pragma unroll
        for (int j = 0; j < kOneItems; ++j)  // steps that change nothing
          if (j >= steps) dt[j] = 0;
#pragma unroll
      for (int j = 0; j < kOneItems; ++j) {
        sum_dt += dt[j];
        a[j] = exp2_approx(dt[j] * rate);
        b[j] = dt[j] * now.u[j] * B[j];
        all.offset = fmaf(a[j], all.offset, b[j]);
      }
      all.factor = exp2_approx(rate * sum_dt);
      float h = scan_lanes<kLanes, false>(all, place.segment)(own.carry);
      if (exists && place.segment == 0 && starts) starts[r] = own.carry;
      __syncwarp();  // all lanes have read what one of them now replaces
      if (exists && place.segment == kLanes - 1) rows[r].carry = all(own.carry);
      if (args.out.data == nullptr) continue;
      float y[kOneItems];
#pragma unroll
      for (int j = 0; j < kOneItems; ++j) {
        h = fmaf(a[j], h, b[j]);
        y[j] = fmaf(C[j], h, own.D * now.u[j]);
      }
      store_items<G>(out, args.out.step, args.out.unit, exists ? steps : 0, y);
      out += Place::kStride * args.out.channel;
    }
    __syncwarp();  // carries of one lane are another's next
  }
  __syncthreads();
  const bool last = args.out.data == nullptr && args.tiles > 1;
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp) {
    if (last) place.tile_states(args, args.tiles - 1)[r] = rows[r].carry;
    if (args.out.data && args.last_state)
      args.last_state[int64_t{place.item} * args.channels + place.channel + r] = rows[r].carry;
  }
}

}  // namespace

void launch_one_state_forward(const SelectiveScanGpuArguments& args,
                              const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  if (plan.short_rows) return launch_short_rows_forward(args, plan, out, stream);
  dispatch_one_state(args.inputs[0].dtype, out, plan.segments,
                     [&]<typename T, typename G, int kLanes>() {
                       launch("selective_scan forward", one_state_forward<T, G, kLanes>,
                              launch_shape(args, plan), stream, args);
                     });
}

}  // namespace linescan
