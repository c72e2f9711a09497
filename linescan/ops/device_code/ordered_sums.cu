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
constexpr int kPack = 4;      // neighbouring sums of a thread, where addresses allow it and from
constexpr int64_t kManySums = int64_t{1} << 16;  // so many on: fewer would leave the device idle

struct Jobs {
  OrderedSums all;
  int64_t first_block[kMaxOrderedSums];
  int64_t blocks_a_line[kMaxOrderedSums];
  int lines_a_block[kMaxOrderedSums];  // one of the two is 1
  int split[kMaxOrderedSums];
  int pack[kMaxOrderedSums];  // kPack or 1
};

template <int kCount>
__device__ __forceinline__ void store_sums(const OrderedSum& sum, int64_t offset,
                                           const float (&x)[kCount]) {
  const auto as = [&]<typename T>() {
    Pack<T, kCount> result;
#pragma unroll
    for (int i = 0; i < kCount; ++i) result.values[i] = from_float<T>(x[i]);
    *reinterpret_cast<Pack<T, kCount>*>(sum.to + offset) = result;
  };
  if (sum.dtype == DType::kBFloat16)
    as.template operator()<BFloat16>();
  else if (sum.dtype == DType::kFloat16)
    as.template operator()<Float16>();
  else
    as.template operator()<float>();
}

template <int kCount>
__device__ __forceinline__ void sum_some(const Jobs& jobs, int job) {
  const OrderedSum& sum = jobs.all.sums[job];
  const int columns = kThreads / jobs.split[job];
  const int column = static_cast<int>(threadIdx.x) % columns;
  const int share = static_cast<int>(threadIdx.x) / columns;

  const int64_t block = blockIdx.x - jobs.first_block[job];
  const int lines = jobs.lines_a_block[job];
  int64_t line = block, t = column * kCount;
  if (jobs.blocks_a_line[job] > 1) {
    line = block / jobs.blocks_a_line[job];
    t += (block - line * jobs.blocks_a_line[job]) * columns * kCount;
  }
  bool inside = true;
  if (lines > 1) {
    const int length = static_cast<int>(sum.sizes[3]), place = column * kCount;
    inside = place < lines * length;
    t = place % length;
    line = line * lines + place / length;
  }
  inside &= t < sum.sizes[3] && line < sum.sizes[0] * sum.sizes[1] * sum.sizes[2];

  using Numbers = Pack<float, kCount>;
  Numbers total = {};
  if (inside) {
    const float* __restrict__ from = sum.from + line * sum.sizes[3] + t;
    const int64_t end = sum.parts * (share + 1) / jobs.split[job];
#pragma unroll 4
    for (int64_t part = sum.parts * share / jobs.split[job]; part < end; ++part) {
      const Numbers some = *reinterpret_cast<const Numbers*>(from + part * sum.part_stride);
#pragma unroll
      for (int i = 0; i < kCount; ++i) total.values[i] += some.values[i];
    }
  }
  Numbers* shares = reinterpret_cast<Numbers*>(shared_memory());
  shares[threadIdx.x] = total;
  __syncthreads();
  if (share > 0 || !inside) return;
  for (int other = 1; other < jobs.split[job]; ++other)
#pragma unroll
    for (int i = 0; i < kCount; ++i) total.values[i] += shares[other * columns + column].values[i];

  int64_t offset = t * sum.strides[3];
  for (int dim = 2; dim >= 0 && line > 0; --dim) {
    const int64_t rest = line / sum.sizes[dim];
    offset += (line - rest * sum.sizes[dim]) * sum.strides[dim];
    line = rest;
  }
  store_sums(sum, offset, total.values);
}

__global__ void __launch_bounds__(kThreads) ordered_sums(const __grid_constant__ Jobs jobs) {
  int job = 0;
  while (job + 1 < jobs.all.count && blockIdx.x >= jobs.first_block[job + 1]) ++job;
  if (jobs.pack[job] == kPack)
    sum_some<kPack>(jobs, job);
  else
    sum_some<1>(jobs, job);
}

// The same sums with as few and long lines as the strides of `to` allow.
OrderedSum in_long_lines(OrderedSum sum) {
  for (int dim = 2; dim >= 0; --dim) {
    if (sum.sizes[3] == 1)
      sum.strides[3] = sum.strides[dim];
    else if (sum.sizes[dim] > 1 && sum.strides[dim] != sum.sizes[3] * sum.strides[3])
      break;
    sum.sizes[3] *= sum.sizes[dim];
    sum.sizes[dim] = 1;
  }
  return sum;
}

bool comes_in_packs(const OrderedSum& sum) {
  if (sum.sizes[0] * sum.sizes[1] * sum.sizes[2] * sum.sizes[3] < kManySums) return false;
  const int64_t element = static_cast<int64_t>(size_of(sum.dtype)), bytes = kPack * element;
  const auto aligned = [](const void* address, int64_t to) {
    return reinterpret_cast<std::uintptr_t>(address) % static_cast<std::uintptr_t>(to) == 0;
  };
  bool packs = sum.sizes[3] % kPack == 0 && sum.strides[3] == element && aligned(sum.to, bytes) &&
               sum.part_stride % kPack == 0 && aligned(sum.from, kPack * sizeof(float));
  for (int dim = 0; dim < 3; ++dim) packs &= sum.sizes[dim] == 1 || sum.strides[dim] % bytes == 0;
  return packs;
}

}  // namespace

void launch_ordered_sums(const char* what, const OrderedSums& sums, GpuStream stream) {
  Jobs jobs{};
  int64_t grid = 0;
  for (int i = 0; i < sums.count; ++i) {
    const OrderedSum sum = in_long_lines(sums.sums[i]);
    const int64_t lines = sum.sizes[0] * sum.sizes[1] * sum.sizes[2];
    if (lines * sum.sizes[3] == 0) continue;
    const int job = jobs.all.count;
    jobs.all.add(sum);
    jobs.split[job] = 1;
    while (jobs.split[job] < kMaxSplit && jobs.split[job] * 4 <= sum.parts) jobs.split[job] *= 2;
    jobs.pack[job] = comes_in_packs(sum) ? kPack : 1;
    const int64_t numbers = int64_t{kThreads} / jobs.split[job] * jobs.pack[job];
    jobs.blocks_a_line[job] = ceil_div(sum.sizes[3], numbers);
    jobs.lines_a_block[job] = static_cast<int>(std::max<int64_t>(1, numbers / sum.sizes[3]));
    jobs.first_block[job] = grid;
    grid += ceil_div(lines, jobs.lines_a_block[job]) * jobs.blocks_a_line[job];
  }
  launch(what, ordered_sums, {grid, kThreads, kThreads * kPack * sizeof(float)}, stream, jobs);
}

}  // namespace linescan
