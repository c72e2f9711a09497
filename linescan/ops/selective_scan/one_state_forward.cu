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

// A lane's steps of a row.
template <typename T, int kItems>
struct RowItems {
  GpuRawItems<T, kItems> u, delta;
};

// A lane's steps of row r: from what enters the row's tile, rows[r].carry, to out and to what leaves it.
template <typename G, typename T, int kItems, int kLanes>
__device__ __forceinline__ void scan_row(const SelectiveScanGpuArguments& args,
                                         const OneStatePlace<kLanes>& place, OneStateRow* rows,
                                         int r, int steps, const RowItems<T, kItems>& now,
                                         const float (&B)[kItems], const float (&C)[kItems],
                                         float* starts, unsigned char* out) {
  const bool exists = r < place.rows;
  const OneStateRow own = exists ? rows[r] : OneStateRow{};
  const float rate = own.A * kLog2e;
  float dt[kItems], a[kItems], b[kItems], sum_dt = 0;
  Affine all{1, 0};
#pragma unroll
  for (int j = 0; j < kItems; ++j) dt[j] = now.delta[j] + own.bias;
  if (args.softplus)
#pragma unroll
    for (int j = 0; j < kItems; ++j) dt[j] = softplus_of<T>(dt[j]);
  if (steps < kItems)
#pragma unroll
    for (int j = 0; j < kItems; ++j)  // steps that change nothing
      if (j >= steps) dt[j] = 0;
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    sum_dt += dt[j];
    a[j] = exp2_approx(dt[j] * rate);
    b[j] = dt[j] * now.u[j] * B[j];
    all.offset = fmaf(a[j], all.offset, b[j]);
  }
  all.factor = exp2_approx(rate * sum_dt);
  float leaves, h = pass_lanes<kLanes, false>(all, place.segment, own.carry, leaves);
  if (exists && place.segment == 0 && starts) starts[r] = own.carry;
  __syncwarp();  // all lanes have read what one of them now replaces
  if (exists && place.segment == kLanes - 1) rows[r].carry = leaves;
  if (args.out.data == nullptr) return;
  float y[kItems];
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    h = fmaf(a[j], h, b[j]);
    y[j] = fmaf(C[j], h, own.D * now.u[j]);
  }
  store_items<G>(out, args.out.step, args.out.unit, exists ? steps : 0, y);
}

// Of half types six blocks share a multiprocessor.
template <typename T, typename G, int kLanes, bool kTail>
__global__ void __launch_bounds__(kOneWarps* kGpuWarp, sizeof(T) == 4 ? 5 : 6)
    one_state_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  using Place = OneStatePlace<kLanes>;
  const Place place(args);
  OneStateRow* rows = keep_shared(reinterpret_cast<OneStateRow*>(shared_memory()));
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp)
    rows[r] = one_state_row(args, place.item, place.channel + r, args.initial_state);
  __syncthreads();
  const GpuSequence &u = args.inputs[0], &delta = args.inputs[1];
  const unsigned char *u_from = place.address(u, place.template start<kOneItems>(0)),
                      *delta_from = place.address(delta, place.template start<kOneItems>(0));
  // Of the lane's next row.
  const auto fetch = [&]<int kItems>(int r, int steps) {
    const int count = r < place.rows ? steps : 0;
    const RowItems<T, kItems> items{
        load_items<T, kItems>(u_from, u.step, u.unit, count),
        load_items<T, kItems>(delta_from, delta.step, delta.unit, count)};
    u_from += Place::kStride * u.channel, delta_from += Place::kStride * delta.channel;
    return items;
  };

  // Rows are read a turn ahead, and the first one of a tile before the tile begins. The last tile's states start
  // nothing.
  constexpr int kItems = kOneItems;
  const int tiles = args.out.data && !kTail ? args.tiles : args.tiles - 1;
  const int turns = (place.rows + Place::kStride - 1) / Place::kStride;
  const int64_t u_jump = Place::kTile * u.step - turns * (Place::kStride * u.channel),
                delta_jump = Place::kTile * delta.step - turns * (Place::kStride * delta.channel);
  const auto steps_of = [&](int tile) {
    return tile < tiles ? place.template count<kItems>(args, tile) : 0;
  };
  int steps_ahead = steps_of(0);
  GpuRawItems<T, kItems> next_B, next_C;
  const auto fetch_factors = [&](int tile) {
    if (tile >= tiles) return;
    next_B = load_factor<T, kItems>(args, 0, place, tile);
    next_C = load_factor<T, kItems>(args, 1, place, tile);
  };
  fetch_factors(0);
  auto next = fetch.template operator()<kItems>(place.row, steps_ahead);
  for (int tile = 0; tile < tiles; ++tile) {
    const int steps = steps_ahead;
    steps_ahead = steps_of(tile + 1);
    float B[kItems], C[kItems];
    to_floats(B, next_B);
    to_floats(C, next_C);
    fetch_factors(tile + 1);
    float* starts = tile > 0 && args.tile_states ? place.tile_states(args, tile) : nullptr;
    unsigned char* out = place.address(args.out, place.template start<kItems>(tile));
#pragma unroll 1
    for (int first = 0; first < place.rows; first += Place::kStride) {
      const int r = first + place.row;
      const bool more = first + Place::kStride < place.rows;
      const auto now = next;
      if (!more) u_from += u_jump, delta_from += delta_jump;
      next = fetch.template operator()<kItems>(more ? r + Place::kStride : place.row,
                                               more ? steps : steps_ahead);
      scan_row<G>(args, place, rows, r, steps, now, B, C, starts, out);
      out += Place::kStride * args.out.channel;
    }
    __syncwarp();  // carries of one lane are another's next
  }
  if (kTail && args.out.data) {
    constexpr int kItems = kOneTailItems;
    const int tile = args.tiles - 1, steps = place.template count<kItems>(args, tile);
    u_from = place.address(u, place.template start<kItems>(tile));
    delta_from = place.address(delta, place.template start<kItems>(tile));
    float B[kItems], C[kItems];
    to_floats(B, load_factor<T, kItems>(args, 0, place, tile));
    to_floats(C, load_factor<T, kItems>(args, 1, place, tile));
    float* starts = tile > 0 && args.tile_states ? place.tile_states(args, tile) : nullptr;
    unsigned char* out = place.address(args.out, place.template start<kItems>(tile));
    auto next = fetch.template operator()<kItems>(place.row, steps);
#pragma unroll 1
    for (int first = 0; first < place.rows; first += Place::kStride) {
      const int r = first + place.row;
      const auto now = next;
      next = fetch.template operator()<kItems>(r + Place::kStride, steps);
      scan_row<G>(args, place, rows, r, steps, now, B, C, starts, out);
      out += Place::kStride * args.out.channel;
    }
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
                       launch("selective_scan forward",
                              plan.tail ? one_state_forward<T, G, kLanes, true>
                                        : one_state_forward<T, G, kLanes, false>,
                              launch_shape(args, plan), stream, args);
                     });
}

}  // namespace linescan
