// ss2d, forward, for half data, one state and records of up to eight numbers on planes of several tiles, in cells (gpu_cells.cuh):
// the steps of packed_lines_forward.cu.
//
// Source:    docs/decisions/0073-cells.md.
// Numerics:  as packed_forward.cu.
// Reference: reference.cpp beside this file. Chosen by launch_packed_forward in packed_forward.cu.

#include "linescan/ops/device_code/predicated.cuh"
#include "linescan/ops/ss2d/gpu_cells.cuh"
#include "linescan/ops/ss2d/gpu_forward.cuh"

namespace linescan {
namespace {

template <typename T, typename Out>
__global__ void __launch_bounds__(32 * kCellWarps, kCellBlocks)
    packed_cells_forward_kernel(ForwardArguments<T> args) {
  const BlockPlace place(args);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  unsigned char* const memory = shared_memory();
  const int block_bytes = args.routes * (kCellRouteBytes + kCellLaneBytes);
  char* const x =
      reinterpret_cast<char*>(memory + block_bytes) + warp * (kCellBytes + kCellSumBytes);
  char* const sums = x + kCellBytes;
  CellRoutes<T> routes(memory, args.routes);
  routes.prepare(args, place, args.entering, [](int) { return uint2{0, 0}; });
  __syncthreads();

  const PackedFactors<T, 1> factors(args);
  const RecordWords words(args.record, 1);  // of which one eight has the first
  float skip[2];
  for (int i = 0; i < 2; ++i)
    skip[i] = kLog2e * skip_of_routes(args, place.group * kGpuChannels + 2 * g + i);

  // What a half of a route begins with, asked for while the one before is worked on.
  struct Ahead {
    float4 segment;  // (factor, offset) of either channel
    float2 end;
    RecordColumns<T, 1> columns;
  } next;
  const int columns = place.width / kCellSide, halves = 2 * args.routes;
  for (Cell cell = {warp, 0}; cell.row < place.height / kCellSide; cell.row += kCellWarps)
#pragma unroll 1
    for (cell.column = 0; cell.column < columns; ++cell.column) {
      const auto fetch = [&](int item) {
        const CellRoute& route = routes.route(item / 2);
        const int line = item % 2 * kGpuSegments + q;
        next.segment =
            __ldg(reinterpret_cast<const float4*>(route.segments.at(cell, line) + g * 16));
        next.end = __ldg(reinterpret_cast<const float2*>(route.ends.at(cell, line) + g * 8));
        // Of product j the lane's column is step 2 j, or the next one, of line g / 2.
        const CellWalk records = route.records;
        const char* const first =
            records.at(cell, item % 2 * kGpuSegments + g / 2) + g % 2 * records.step;
#pragma unroll
        for (int j = 0; j < kGpuProducts; ++j)
          next.columns.load(
              j, reinterpret_cast<const T*>(first + 2 * j * records.step) + words.first, words);
      };
      __syncwarp();  // the cell before has been read
      bring_cell(x, CellPlane<const T>(args, place, args.x), cell);
      commit_copies();
      fetch(0);
      wait_copies<0>();
      __syncwarp();
#pragma unroll 1
      for (int item = 0; item < halves; ++item) {
        const Ahead now = next;
        const int k = item / 2, line = item % 2 * kGpuSegments + q;
        if (item + 1 < halves) fetch(item + 1);
        const auto parameters = routes.parameters(k);
        const CellRoute& route = routes.route(k);
        const CellOrder pixels = route.pixels;
        const CellSums own_sums(sums, route.sums, line);
        const char* const values = x + pixels.at(line) + g * 4;
        float delta[kCellSide][2], B[kCellSide], C[kCellSide];
        parameters.weights.multiply(now.columns, delta);
        factors.multiply(now.columns, B, C);
        float h[2] = {fmaf(now.segment.x, now.end.x, now.segment.y),
                      fmaf(now.segment.z, now.end.y, now.segment.w)};
        char* const kept = const_cast<char*>(route.states.at(cell, line)) + g * 8;
        store_if(args.starts != nullptr, reinterpret_cast<float2*>(kept), make_float2(h[0], h[1]));
        for (float& state : h) state *= kLog2e;
        // kFirst: the route's results are the sums' first addends, with D x.
        const auto walk = [&]<bool kFirst>() {
#pragma unroll
          for (int t = 0; t < kCellSide; ++t) {
            const Two<T> both = read_cell<T>(values, pixels.step, t);
            const float value[2] = {both[0], both[1]};
            const float2 sum =
                kFirst ? make_float2(skip[0] * value[0], skip[1] * value[1]) : own_sums.read(t);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              const float size = softplus_base2(delta[t][i]);
              h[i] = fmaf(exp2_approx(size * parameters.rate[i]), h[i], size * (value[i] * B[t]));
            }
            own_sums.write(t, make_float2(fmaf(C[t], h[0], sum.x), fmaf(C[t], h[1], sum.y)));
          }
        };
        k == 0 ? walk.template operator()<true>() : walk.template operator()<false>();
        __syncwarp();  // the next route's lines are others
      }
      write_cell(CellPlane<Out>(args, place, args.template out_as<Out>()), cell, sums, kLn2);
    }
}

}  // namespace

template <typename T>
bool takes_cells(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan) {
  return packed_cells(args, plan) && args.out.data != nullptr &&
         (args.out_dtype == kDTypeOf<T> || args.out_dtype == DType::kFloat32) &&
         whole_sixteens(args.out, size_of(args.out_dtype), args.width);
}

template <typename T>
void launch_packed_cells(const ForwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                         GpuStream stream) {
  const auto kernel = args.out_dtype == DType::kFloat32 ? packed_cells_forward_kernel<T, float>
                                                        : packed_cells_forward_kernel<T, T>;
  launch("ss2d packed_cells_forward", kernel,
         {plan.blocks_an_image() * images, static_cast<int>(plan.block), plan.shared_bytes}, stream,
         args);
}

template bool takes_cells(const ForwardArguments<Float16>&, const Ss2dGpuPlan&);
template bool takes_cells(const ForwardArguments<BFloat16>&, const Ss2dGpuPlan&);
template void launch_packed_cells(const ForwardArguments<Float16>&, const Ss2dGpuPlan&, int64_t,
                                  GpuStream);
template void launch_packed_cells(const ForwardArguments<BFloat16>&, const Ss2dGpuPlan&, int64_t,
                                  GpuStream);

}  // namespace linescan
