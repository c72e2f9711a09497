// Sums of partial results on the GPU, always in the same order.
#pragma once

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/ops/gpu_stream.h"

namespace linescan {

// to[i, j, k, t] = sum over parts p of from[p, i, j, k, t], which is contiguous; `to` has any type and
// strides (in bytes). No parts give zero.
struct OrderedSum {
  const float* from = nullptr;
  int64_t parts = 0, part_stride = 0;  // in floats
  int64_t sizes[4] = {1, 1, 1, 1};
  unsigned char* to = nullptr;
  int64_t strides[4] = {};
  DType dtype = DType::kFloat32;
};

inline constexpr int kMaxOrderedSums = 8;
struct OrderedSums {
  OrderedSum sums[kMaxOrderedSums];
  int count = 0;

  void add(const OrderedSum& sum) { sums[count++] = sum; }
};

// Columns [first, first + count) of parts [rows, columns], summed over the rows to `to` [count].
inline OrderedSum sum_of_columns(const float* parts, int64_t rows, int64_t columns, int64_t first,
                                 int64_t count, float* to) {
  OrderedSum sum;
  sum.from = parts + first;
  sum.parts = rows;
  sum.part_stride = columns;
  sum.sizes[3] = count;
  sum.to = reinterpret_cast<unsigned char*>(to);
  sum.strides[3] = sizeof(float);
  return sum;
}

// All of them in one launch, called `what` in errors.
void launch_ordered_sums(const char* what, const OrderedSums& sums, GpuStream stream);

}  // namespace linescan
