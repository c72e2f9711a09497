// ss2d, backward, for half data, one state and records of up to eight numbers on planes of several tiles, in cells (gpu_cells.cuh):
// the steps of packed_lines_backward.cu.
//
// Of a cell a warp has x, the result's gradient and the records brought to shared memory; a half of a route leaves the gradient of
// its records where they were.
//
// Source:    docs/decisions/0073-cells.md.
// Numerics:  as packed_backward.cu.
// Reference: reference.cpp beside this file. Chosen by launch_packed_backward in packed_backward.cu.

#include "linescan/ops/ss2d/gpu_cells.cuh"
#include "linescan/ops/ss2d/gpu_packed_gradients.cuh"

namespace linescan {
namespace {

// Calls use(place, at) for the lane's two records of a route of a cell: bytes from the first one's place in shared memory to the record's,
// and where it is in a tensor [pixels, routes, record], of which `image` is the first pixel.
template <typename T, typename Number, class Use>
__device__ __forceinline__ void each_record(const Ss2dGpuArguments<T>& args,
                                            const BlockPlace& place, Number* image,
                                            const Cell& cell, int k, const Use& use) {
  const int row = static_cast<int>(threadIdx.x) % 32 / 8, column = threadIdx.x % 8;
  const int pixel_bytes = args.routes * args.record * static_cast<int>(sizeof(T));
  const int row_bytes = args.width * pixel_bytes;
  Number* const first = offset_bytes(
      offset_bytes(image + k * args.record, place.top + kCellSide * cell.row + row, row_bytes),
      place.left + kCellSide * cell.column + column, pixel_bytes);
#pragma unroll
  for (int turn = 0; turn < kCellSide / 4; ++turn)
    use((row + 4 * turn) * kCellRecordRow + column * kCellRecordPixel,
        offset_bytes(first, 4 * turn, row_bytes));
}
// Sixteen bytes a record, or as many words of four as it has.
template <typename T>
__device__ __forceinline__ void bring_records(char* to, const BackwardArguments<T>& args,
                                              const BlockPlace& place, const Cell& cell, int k) {
  const int64_t pixels = static_cast<int64_t>(args.height) * args.width;
  const T* const image = args.projection + place.image * pixels * args.routes * args.record;
  each_record(args, place, image, cell, k, [&](int own, const T* at) {
    if (args.record == kGpuOnChipNumbers) return copy_async<16>(to + own, at);
#pragma unroll 1
    for (int i = 0; i < args.record; i += 2) copy_async<4>(to + own + 2 * i, at + i);
  });
}
template <typename T>
__device__ __forceinline__ void write_records(const BackwardArguments<T>& args,
                                              const BlockPlace& place, const Cell& cell, int k,
                                              const char* from) {
  T* const image = args.packed_record_sums.of_block(args, place, 0);
  each_record(args, place, image, cell, k, [&](int own, T* at) {
    const auto* words = reinterpret_cast<const uint32_t*>(from + own);
    if (args.record == kGpuOnChipNumbers) {
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(words);
      return;
    }
#pragma unroll 1
    for (int i = 0; i < args.record; i += 2) reinterpret_cast<uint32_t*>(at)[i / 2] = words[i / 2];
  });
}

// What becomes of the gradients of delta, B and C: multiplied on the chip, and left in the place of the records.
template <typename T>
struct CellGradients {
  MultipliedDelta<T>& delta;
  const FragmentA<T>& ones;
  char* at;  // the lane's number of the half's record at step 0
  int step;  // bytes

  // Of the steps 2 j and 2 j + 1: g_delta [step, channel], and sums over the lane's two channels.
  __device__ __forceinline__ void take(int j, int, const float (&g_delta)[2][2],
                                       const float (&to_B)[2], const float (&to_C)[2]) {
    float product[4] = {};
    delta.take(j, g_delta, product);
    multiply(product, ones, channel_pairs<T>(to_B, to_C), product);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      *reinterpret_cast<T*>(at + (2 * j + i) * step) = from_float<T>(product[i]);
  }
  __device__ __forceinline__ void finish_chunk() { delta.finish_chunk(); }
};

template <typename T>
__global__ void __launch_bounds__(32 * kCellWarps, kCellBackwardBlocks)
    packed_cells_backward_kernel(BackwardArguments<T> args) {
  const BlockPlace place(args);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  unsigned char* const memory = shared_memory();
  const int block_bytes = args.routes * (kCellRouteBytes + kCellLaneBytes);
  const int warp_bytes =
      2 * kCellBytes + kCellSumBytes + args.routes * (kCellRecordBytes + kCellParameterBytes);
  char* const x = reinterpret_cast<char*>(memory + block_bytes) + warp * warp_bytes;
  char* const gy = x + kCellBytes;
  char* const sums = gy + kCellBytes;
  char* const records = sums + kCellSumBytes;
  // Of every route and lane: the gradients of A and dt_bias, and of dt_weight.
  auto* const gathered = reinterpret_cast<float4*>(records + args.routes * kCellRecordBytes) + lane;

  CellRoutes<T> routes(memory, args.routes);
  routes.prepare(args, place, args.returning, [&](int k) {
    const FragmentA<T> columns = few_weight_columns<T>(args, place, k);
    return make_uint2(columns.words[0], columns.words[2]);
  });
  // Numbers that records do not have stay zero; what they are multiplied by is zero too.
  for (int at = 16 * lane; at < args.routes * (kCellRecordBytes + kCellParameterBytes);
       at += 16 * 32)
    *reinterpret_cast<uint4*>(records + at) = uint4{};
  __syncthreads();

  const PackedFactors<T, 1> factors(args);
  const FragmentA<T> ones = channel_ones(args, place, args.rank, args.rank + 1);
  const int channel[2] = {place.group * kGpuChannels + 2 * g,
                          place.group * kGpuChannels + 2 * g + 1};
  const bool exists[2] = {true, true};
  float skip[2], g_D[2] = {};
  for (int i = 0; i < 2; ++i) skip[i] = skip_of_routes(args, channel[i]);

  // What a half of a route begins with, asked for while the one before is worked on.
  struct Ahead {
    float4 segment;  // (factor, offset) of either channel
    float2 end, entering;
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
        next.entering = __ldg(reinterpret_cast<const float2*>(route.states.at(cell, line) + g * 8));
      };
      __syncwarp();  // the cell before has been read
      bring_cell(x, CellPlane<const T>(args, place, args.x), cell);
      bring_cell(gy, CellPlane<const T>(args, place, args.template gout_as<T>()), cell);
#pragma unroll 1
      for (int k = 0; k < args.routes; ++k)
        bring_records(records + k * kCellRecordBytes, args, place, cell, k);
      commit_copies();
      fetch(0);
      wait_copies<0>();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kCellSide * kCellSide / 4; ++i) {
        const int row = 4 * i / kCellSide, column = 4 * i % kCellSide + q;
        const int own = row * kCellRow + column * kCellPixel + g * 4;
        const Two<T> value = read_cell<T>(x + own, 0, 0), gradient = read_cell<T>(gy + own, 0, 0);
        const float gradients[2] = {gradient[0], gradient[1]};
        for (int c = 0; c < 2; ++c) g_D[c] = fmaf(gradients[c], value[c], g_D[c]);
        *reinterpret_cast<float2*>(sums + row * kCellSumRow + column * kCellSumPixel +
                                   (g ^ CellSums::swap_of(column)) * 8) =
            make_float2(skip[0] * gradients[0], skip[1] * gradients[1]);
      }
#pragma unroll 1
      for (int item = 0; item < halves; ++item) {
        const Ahead now = next;
        const int k = item / 2, first_line = item % 2 * kGpuSegments, line = first_line + q;
        if (item + 1 < halves) fetch(item + 1);
        const auto from = routes.parameters(k);
        const CellRoute& route = routes.route(k);
        const CellOrder own_records = route.own_records, pixels = route.pixels;
        char* const of_route = records + k * kCellRecordBytes;
        // Of product j the lane's column is step 2 j, or the next one, of line g / 2.
        uint32_t words[kGpuProducts];
        load_matrices(words, of_route + own_records.at(first_line + lane % 8 / 2) +
                                 (2 * (lane / 8) + lane % 2) * own_records.step);
        RecordColumns<T, 1> record;
#pragma unroll
        for (int j = 0; j < kGpuProducts; ++j) record.words[j][0] = words[j];
        ChannelGradients parameters;
        for (int i = 0; i < 2; ++i) parameters.A[i] = from.rate[i];
        MultipliedDelta<T> delta_gradient(FragmentA<T>{{from.columns[0], 0, from.columns[1], 0}});
        BackwardSegment<T, T, kCellSide> s;
        float delta[kCellSide][2];
        from.weights.multiply(record, delta);
        factors.multiply(record, s.B, s.C);
        delta_gradient.start_chunk(record);
        const int own = pixels.at(line) + g * 4;
#pragma unroll
        for (int t = 0; t < kCellSide; ++t) {
          s.x[t] = read_cell<T>(x + own, pixels.step, t);
          s.gy[t] = read_cell<T>(gy + own, pixels.step, t);
        }
        s.find_factors(delta, parameters.A, kCellSide);
        s.find_states(0, now.entering.x);
        s.find_states(1, now.entering.y);
        float c[2] = {fmaf(now.segment.x, now.end.x, now.segment.y),
                      fmaf(now.segment.z, now.end.y, now.segment.w)};
        __syncwarp();  // the half's records have been read
        // Of numbers that records do not have, which may be none if a channel's gradient is, it is the rows' padding that takes them.
        const int number = MultipliedDelta<T>::row();
        const bool stays = number < args.record;
        char* const place_of_line =
            of_route +
            (stays ? own_records.at(line) : q * kCellRecordRow + kCellSide * kCellRecordPixel);
        CellGradients<T> gradients = {delta_gradient, ones,
                                      place_of_line + number * static_cast<int>(sizeof(T)),
                                      stays ? own_records.step : 0};
        const CellSums own_sums(sums, route.sums, line);
        walk_back(s, c, parameters, own_sums, gradients, kCellSide);
        float4* const to = gathered + k * (2 * 32);
        const float4 sum = to[0], weights = to[32];
        const auto& more = delta_gradient.g_weight;
        to[0] = make_float4(sum.x + parameters.g_A[0], sum.y + parameters.g_A[1],
                            sum.z + parameters.g_bias[0], sum.w + parameters.g_bias[1]);
        to[32] = make_float4(weights.x + more[0], weights.y + more[1], weights.z + more[2],
                             weights.w + more[3]);
        __syncwarp();  // the next route's lines are others
      }
      write_cell(CellPlane<T>(args, place, args.gx), cell, sums, 1.0f);
#pragma unroll 1
      for (int k = 0; k < args.routes; ++k)
        write_records(args, place, cell, k, records + k * kCellRecordBytes);
    }
#pragma unroll 1
  for (int k = 0; k < args.routes; ++k) {
    const float4 sum = gathered[k * (2 * 32)], weights = gathered[k * (2 * 32) + 32];
    ChannelGradients parameters;
    parameters.g_A[0] = sum.x, parameters.g_A[1] = sum.y;
    parameters.g_bias[0] = sum.z, parameters.g_bias[1] = sum.w;
    if (k == 0) parameters.g_D[0] = g_D[0], parameters.g_D[1] = g_D[1];
    const ParameterSums::Place to = args.parameter_sums.place(args, place, k, warp, channel);
    parameters.store(to, exists);
    const float g_weight[4] = {weights.x, weights.y, weights.z, weights.w};
    to.store_weights(0, exists, g_weight);
  }
}

}  // namespace

template <typename T>
bool takes_cells(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan) {
  const auto gout = args.template gout_as<T>();
  const bool records = args.record < kGpuOnChipNumbers ||
                       reinterpret_cast<std::uintptr_t>(args.projection) % 16 == 0;
  return packed_cells(args, plan) && records && args.gout_dtype == kDTypeOf<T> &&
         whole_sixteens(gout, sizeof(T), args.width) &&
         whole_sixteens(args.gx, sizeof(T), args.width);
}

template <typename T>
void launch_packed_cells(const BackwardArguments<T>& args, const Ss2dGpuPlan& plan, int64_t images,
                         GpuStream stream) {
  launch("ss2d packed_cells_backward", packed_cells_backward_kernel<T>,
         {plan.blocks_an_image() * images, static_cast<int>(plan.block), plan.shared_bytes}, stream,
         args);
}

template bool takes_cells(const BackwardArguments<Float16>&, const Ss2dGpuPlan&);
template bool takes_cells(const BackwardArguments<BFloat16>&, const Ss2dGpuPlan&);
template void launch_packed_cells(const BackwardArguments<Float16>&, const Ss2dGpuPlan&, int64_t,
                                  GpuStream);
template void launch_packed_cells(const BackwardArguments<BFloat16>&, const Ss2dGpuPlan&, int64_t,
                                  GpuStream);

}  // namespace linescan
