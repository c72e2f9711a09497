// Sums of partial results (ordered_sums.h). A block takes some neighbouring t of one line (i, j, k), or
// several short lines; where there are many parts, its threads take some each and add up through
// shared memory.

#include <algorithm>

#include "linescan/base/math.h"
#include "linescan/ops/device_code/numbers.cuh"
#include "linescan/ops/device_code/ordered_sums.h"

namespace linescan {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxSplit = 8;  // threads that share a sum

struct Jobs {
  OrderedSums all;
  int64_t first_block[kMaxOrderedSums];
  int64_t blocks_a_line[kMaxOrderedSums];
  int lines_a_block[kMaxOrderedSums];  // one of the two is 1
  int split[kMaxOrderedSums];
};

__global__ void __launch_bounds__(kThreads) ordered_sums(const __grid_constant__ Jobs jobs) {
  int job = 0;
  while (job + 1 < jobs.all.count && blockIdx.x >= jobs.first_block[job + 1]) ++job;
  const OrderedSum& sum = jobs.all.sums[job];
  const int columns = kThreads / jobs.split[job];
  const int column = static_cast<int>(threadIdx.x) % columns;
  const int share = static_cast<int>(threadIdx.x) / columns;

  const int64_t block = blockIdx.x - jobs.first_block[job];
  const int lines = jobs.lines_a_block[job];
  int64_t line = block / jobs.blocks_a_line[job];
  int64_t t = (block - line * jobs.blocks_a_line[job]) * columns + column;
  if (lines > 1) {
    const int length = static_cast<int>(sum.sizes[3]);
    t = column % length;
    line = line * lines + column / length;
  }
  const bool inside = t < sum.sizes[3] && column < (lines > 1 ? lines * sum.sizes[3] : columns) &&
                      line < sum.sizes[0] * sum.sizes[1] * sum.sizes[2];

  float total = 0;
  if (inside) {
    const float* __restrict__ from = sum.from + line * sum.sizes[3] + t;
    const int64_t end = sum.parts * (share + 1) / jobs.split[job];
#pragma unroll 4
    for (int64_t part = sum.parts * share / jobs.split[job]; part < end; ++part)
      total += from[part * sum.part_stride];
  }
  float* shares = reinterpret_cast<float*>(shared_memory());
  shares[threadIdx.x] = total;
  __syncthreads();
  if (share > 0 || !inside) return;
  for (int other = 1; other < jobs.split[job]; ++other) total += shares[other * columns + column];

  int64_t offset = t * sum.strides[3];
  for (int dim = 2; dim >= 0; --dim) {
    const int64_t rest = line / sum.sizes[dim];
    offset += (line - rest * sum.sizes[dim]) * sum.strides[dim];
    line = rest;
  }
  if (sum.dtype == DType::kBFloat16)
    *reinterpret_cast<BFloat16*>(sum.to + offset) = from_float<BFloat16>(total);
  else if (sum.dtype == DType::kFloat16)
    *reinterpret_cast<Float16*>(sum.to + offset) = from_float<Float16>(total);
  else
    *reinterpret_cast<float*>(sum.to + offset) = total;
}

}  // namespace

void launch_ordered_sums(const char* what, const OrderedSums& sums, GpuStream stream) {
  Jobs jobs{};
  int64_t grid = 0;
  for (int i = 0; i < sums.count; ++i) {
    const OrderedSum& sum = sums.sums[i];
    const int64_t lines = sum.sizes[0] * sum.sizes[1] * sum.sizes[2];
    if (lines * sum.sizes[3] == 0) continue;
    const int job = jobs.all.count;
    jobs.all.add(sum);
    jobs.split[job] = 1;
    while (jobs.split[job] < kMaxSplit && jobs.split[job] * 4 <= sum.parts) jobs.split[job] *= 2;
    const int64_t columns = kThreads / jobs.split[job];
    jobs.blocks_a_line[job] = ceil_div(sum.sizes[3], columns);
    jobs.lines_a_block[job] = static_cast<int>(std::max<int64_t>(1, columns / sum.sizes[3]));
    jobs.first_block[job] = grid;
    grid += ceil_div(lines, jobs.lines_a_block[job]) * jobs.blocks_a_line[job];
  }
  launch(what, ordered_sums, {grid, kThreads, kThreads * sizeof(float)}, stream, jobs);
}

}  // namespace linescan
