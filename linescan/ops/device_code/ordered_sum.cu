// Column sums of a matrix of partial sums, [rows, columns] float32, in an order that depends on the
// number of rows alone: eight warps of a block take every eighth row each, and their sums are added
// one after the other.

#include "linescan/base/math.h"
#include "linescan/ops/device_code/cuda.cuh"
#include "linescan/ops/device_code/ordered_sum.h"

namespace linescan {
namespace {

constexpr int kColumns = 32, kWarps = 8;

struct Args {
  const float* parts;
  int64_t rows, columns, first_columns;
  float *first, *second;
};

__global__ void __launch_bounds__(kColumns* kWarps) ordered_sum_kernel(Args args) {
  float* shared = reinterpret_cast<float*>(shared_memory());  // [warp, column]
  const float* __restrict__ parts = args.parts;
  const int warp = threadIdx.x / kColumns, lane = threadIdx.x % kColumns;
  const int64_t column = int64_t{blockIdx.x} * kColumns + lane;
  float sum = 0;
  if (column < args.columns)
    for (int64_t row = warp; row < args.rows; row += kWarps)
      sum += parts[row * args.columns + column];
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0 || column >= args.columns) return;
  for (int other = 1; other < kWarps; ++other) sum += shared[other * kColumns + lane];
  if (column < args.first_columns) {
    if (args.first) args.first[column] = sum;
  } else if (args.second) {
    args.second[column - args.first_columns] = sum;
  }
}

}  // namespace

void ordered_sum(const char* what, const float* parts, int64_t rows, float* first,
                 int64_t first_columns, float* second, int64_t second_columns, GpuStream stream) {
  const int64_t columns = first_columns + second_columns;
  const LaunchShape shape = {ceil_div(columns, kColumns), kColumns * kWarps,
                             kColumns * kWarps * static_cast<int64_t>(sizeof(float))};
  launch(what, ordered_sum_kernel, shape, stream,
         Args{parts, rows, columns, first_columns, first, second});
}

}  // namespace linescan
