// Selective scan on the GPU with one state, forward; and the first kernel of its backward pass, which
// leaves nothing but the states at the start of every tile of that pass (no `out`).
//
//   Equations and shapes as in forward.cu.
//
// Lanes lie along the length (gpu_one_state.cuh): they scan their steps from zero, learn by shuffles what
// enters them, and walk again. A warp's next rows come to shared memory while it works (gpu_row_lines.cuh); out takes
// the place of u and delta there.
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/selective_scan/gpu_carries.cuh"
#include "linescan/ops/selective_scan/gpu_row_lines.cuh"

namespace linescan {
namespace {

// Which of a lane's steps in a tile starts from a state that is kept, and where those of the block's rows go.
template <class Place>
struct KeptStep {
  int item = Place::kItems;  // none
  float* states = nullptr;

  __device__ __forceinline__ KeptStep(const SelectiveScanGpuArguments& args, const Place& place,
                                      int tile) {
    if (args.tile_states == nullptr) return;
    const int64_t start = place.start(tile), each = args.state_steps;
    const int64_t number = max((start + each - 1) / each, int64_t{1}), step = number * each;
    if (step - start >= Place::kItems || step >= args.length) return;
    item = static_cast<int>(step - start);
    states = place.tile_states(args, static_cast<int>(number));
  }
};

// A lane's steps of row r: from what enters the row's tile, rows[r].carry, to what leaves it and to y.
template <typename T, class Place, int kItems>
__device__ __forceinline__ void scan_row(const SelectiveScanGpuArguments& args, const Place& place,
                                         OneStateRow* rows, int r, int steps,
                                         GpuRawItems<T, kItems> u,
                                         const GpuRawItems<T, kItems>& delta,
                                         const float (&B)[kItems], const float (&C)[kItems],
                                         const KeptStep<Place>& kept, float (&y)[kItems]) {
  const bool exists = r < place.rows;
  const OneStateRow own = exists ? rows[r] : OneStateRow{};
  const float rate = own.A * kLog2e;
  float dt[kItems], a[kItems], b[kItems], sum_dt = 0;
  Affine all{1, 0};
#pragma unroll
  for (int j = 0; j < kItems; ++j) dt[j] = delta[j] + own.bias;
  if (args.softplus)
#pragma unroll
    for (int j = 0; j < kItems; ++j) dt[j] = softplus_of<T>(dt[j]);
  if (steps < kItems)
#pragma unroll
    for (int j = 0; j < kItems; ++j)  // steps that change nothing
      if (j >= steps) dt[j] = 0, u.clear(j);
#pragma unroll
  for (int j = 0; j < kItems; ++j) {
    sum_dt += dt[j];
    a[j] = exp2_approx(dt[j] * rate);
    b[j] = dt[j] * u[j] * B[j];
    all.offset = fmaf(a[j], all.offset, b[j]);
  }
  all.factor = exp2_approx(rate * sum_dt);
  float leaves, h = pass_lanes<Place::kLanes, false>(all, place.segment, own.carry, leaves);
  __syncwarp();  // all lanes have read what one of them now replaces
  if (exists && place.segment == Place::kLanes - 1) rows[r].carry = leaves;
  if constexpr (sizeof(T) == 2)
    u.renew();  // as floats they would take twice the registers until then
  float kept_h = h;
  const auto walk = [&]<bool kKeeps>() {
#pragma unroll
    for (int j = 0; j < kItems; ++j) {
      if (kKeeps && j > 0 && j == kept.item) kept_h = h;
      h = fmaf(a[j], h, b[j]);
      y[j] = fmaf(C[j], h, own.D * u[j]);
    }
  };
  // Sixteen steps divide the distance between states that are kept: it is always the first step that starts from one.
  if (kItems % 16 == 0 || args.tile_states == nullptr)
    walk.template operator()<false>();
  else
    walk.template operator()<true>();
  if (exists && kept.states) kept.states[r] = kept_h;
}

template <typename T, typename G, class Place>
__global__ void __launch_bounds__(kOneWarps* kGpuWarp,
                                  sizeof(T) == 4 ? kOneFloatBlocks : kOneHalfBlocks)
    one_state_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  constexpr int kItems = Place::kItems, kSlot = 2 * RowLines<T, Place>::kBytes;
  const Place place(args);
  OneStateRow* rows = keep_shared(reinterpret_cast<OneStateRow*>(shared_memory()));
  unsigned char* const slots =
      shared_memory() + args.shared.sequence[0] + place.warp * kOneAhead * kSlot;

  RowLines<T, Place> u(args, args.inputs[0], place), delta(args, args.inputs[1], place);
  RowLines<G, Place> out(args, args.out, place);
  RowTurn<Place> next(args, place, 0);
  const auto fetch = [&](unsigned char* to) {
    if (next.tile < args.tiles) {
      u.fetch(place, next, to);
      delta.fetch(place, next, to + RowLines<T, Place>::kBytes);
      u.next_rows(), delta.next_rows();
      if (!next.next(args, place)) {
        ++next.tile, next.begin_tile(args, place);
        u.next_tile(place), delta.next_tile(place);
      }
    }
    commit_copies();
  };
#pragma unroll 1
  for (int n = 0; n < kOneAhead; ++n) fetch(slots + n * kSlot);
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp)
    rows[r] = one_state_row(args, place.item, place.channel + r, args.initial_state);
  __syncthreads();

  int slot = 0;
  for (int tile = 0; tile < args.tiles; ++tile) {
    float B[kItems], C[kItems];
    to_floats(B, load_factor<T, kItems>(args, 0, place, tile));
    to_floats(C, load_factor<T, kItems>(args, 1, place, tile));
    const KeptStep<Place> kept(args, place, tile);
    const int count = place.count(args, tile);
    RowTurn<Place> turn(args, place, tile);
    bool same_tile;
    do {
      const int r = turn.first + place.lane / Place::kLanes;
      unsigned char* const here = slots + slot * kSlot;
      wait_copies<kOneAhead - 1>();
      __syncwarp();
      float y[kItems];
      const int steps = r < place.rows ? count : 0;
      scan_row(args, place, rows, r, steps, u.read(place, here),
               delta.read(place, here + RowLines<T, Place>::kBytes), B, C, kept, y);
      if (out.exist()) {
        __syncwarp();  // all have read what y replaces
        out.write(place, here, steps, y);
        __syncwarp();
        out.store(place, turn, here);
        out.next_rows();
      }
      same_tile = turn.next(args, place);
      __syncwarp();  // y has left, the carries of one lane are another's next
      fetch(here);
      if (++slot == kOneAhead) slot = 0;
    } while (same_tile);
    out.next_tile(place);
  }
  wait_copies<0>();
  if (args.out.data == nullptr || args.last_state == nullptr) return;
  __syncthreads();
  for (int r = static_cast<int>(threadIdx.x); r < place.rows; r += kOneWarps * kGpuWarp)
    args.last_state[int64_t{place.item} * args.channels + place.channel + r] = rows[r].carry;
}

}  // namespace

void launch_one_state_forward(const SelectiveScanGpuArguments& args,
                              const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  if (plan.short_rows) return launch_short_rows_forward(args, plan, out, stream);
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    const auto run = [&]<int kNumber>() {
      constexpr LanesAndItems kSize = kOneForward[kNumber];
      if (plan.segments != kSize.lanes || plan.items != kSize.items) return;
      launch("selective_scan forward",
             one_state_forward<T, G, OneStatePlace<kSize.lanes, kSize.items>>,
             launch_shape(args, plan), stream, args);
    };
    [&]<int... kNumbers>(std::integer_sequence<int, kNumbers...>) {
      (run.template operator()<kNumbers>(), ...);
    }
    (std::make_integer_sequence<int, std::size(kOneForward)>());
  });
}

}  // namespace linescan
