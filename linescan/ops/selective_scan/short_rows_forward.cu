// Selective scan on the GPU with one state and short rows at odd addresses, forward; and the first kernel of its
// backward pass, which leaves nothing but the states at the start of every tile (no `out`).
//
//   Equations and shapes as in forward.cu.
//
// A lane walks a row (gpu_short_rows.cuh).
// Numerics:  float for every type; reference.cpp beside this file, bounds in the tests.
// Chosen by: gpu_plan.cpp.

#include "linescan/ops/selective_scan/gpu_short_rows.cuh"

namespace linescan {
namespace {

// Of a multiprocessor; those of compute capability 8.6 take no more than 16.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 860
constexpr int kBlocksAtOnce = 16;
#else
constexpr int kBlocksAtOnce = kShortForwardWarps;
#endif

template <typename T, typename G>
__global__ void __launch_bounds__(kGpuWarp, kBlocksAtOnce)
    short_rows_forward(const __grid_constant__ SelectiveScanGpuArguments args) {
  const ShortRowsPlace place(args);
  unsigned char* shared = shared_memory();
  T* const all_u = reinterpret_cast<T*>(shared + args.shared.sequence[0]);
  T* const all_delta = reinterpret_cast<T*>(shared + args.shared.sequence[1]);
  float* const B_of = reinterpret_cast<float*>(shared + args.shared.factors);
  float* const C_of = B_of + args.tiles * kShortPitch;
  const ShortFactors<T> factors(args, place);
  const OneStateRow own =
      place.exists ? one_state_row(args, place.item, place.channel + place.lane, args.initial_state)
                   : OneStateRow{};
  fetch_rows(place, args.inputs[0], all_u);
  fetch_rows(place, args.inputs[1], all_delta);
  commit_copies();
  factors.put(B_of);
  wait_copies<0>();
  __syncwarp();

  T* const u = all_u + place.lane * place.length;
  T* const delta = all_delta + place.lane * place.length;
  const float rate = own.A * kLog2e;
  float h = own.carry;
  const auto walk = [&]<bool kWhole>(int tile) {
    const int start = tile * kShortItems;
    const auto inside = [&](int j) { return kWhole || start + j < place.length; };
    float dt[kShortItems], x[kShortItems], B[kShortPitch], C[kShortPitch];
#pragma unroll
    for (int j = 0; j < kShortItems; ++j) {
      dt[j] = inside(j) ? to_float(delta[start + j]) + own.bias : 0;
      x[j] = inside(j) ? to_float(u[start + j]) : 0;
    }
    if (args.softplus)
#pragma unroll
      for (int j = 0; j < kShortItems; ++j) dt[j] = softplus_of<T>(dt[j]);
    read_factor(B_of, tile, B);
    read_factor(C_of, tile, C);
    if (args.tile_states && tile > 0 && place.exists) *place.tile_state(args, tile) = h;
#pragma unroll
    for (int j = 0; j < kShortItems; ++j) {
      if (!inside(j)) continue;
      h = fmaf(exp2_approx(dt[j] * rate), h, dt[j] * x[j] * B[j]);
      put_out<T, G>(u, delta, start + j, fmaf(C[j], h, own.D * x[j]));
    }
  };
#pragma unroll 1
  for (int tile = 0; tile < args.tiles; ++tile)
    for_tile(place, tile, [&]<bool kWhole>() { walk.template operator()<kWhole>(tile); });

  if (args.out.data == nullptr) return;
  if (args.last_state && place.exists) args.last_state[place.at(args)] = h;
  __syncwarp();
  store_out<T, G>(place, args.out, all_u, all_delta);
}

}  // namespace

void launch_short_rows_forward(const SelectiveScanGpuArguments& args,
                               const SelectiveScanGpuPlan& plan, DType out, GpuStream stream) {
  dispatch_types(args.inputs[0].dtype, out, [&]<typename T, typename G>() {
    launch("selective_scan forward", short_rows_forward<T, G>, launch_shape(args, plan), stream,
           args);
  });
}

}  // namespace linescan
