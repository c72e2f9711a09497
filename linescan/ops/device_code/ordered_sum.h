// The last step of every gradient that blocks have summed in parts: the parts added up in order,
// so that two runs give the same bits.
#pragma once

#include <cstdint>

#include "linescan/ops/gpu_stream.h"

namespace linescan {

// Sums the rows of parts [rows, first_columns + second_columns], float32: the first columns to
// first [first_columns], the others to second [second_columns]; a null result is not wanted.
void ordered_sum(const char* what, const float* parts, int64_t rows, float* first,
                 int64_t first_columns, float* second, int64_t second_columns, GpuStream stream);

}  // namespace linescan
