// What this machine can do at most, measured: the two rates that a scan is held against.
#pragma once

#include <cstdint>

#include "linescan/ops/parallel.h"

namespace linescan {

struct Ceilings {
  double copy_bytes_per_second = 0;    // read plus written, arrays far larger than the caches
  double exponentials_per_second = 0;  // float32, the kernels' own exponential, data in cache
};

// Takes about a second. `threads`: how many ranges parallel_for runs at once.
Ceilings measure_ceilings(const ParallelFor& parallel_for, int64_t threads);

// Seconds that the work takes at least: the slower of its bytes and its exponentials.
inline double floor_seconds(const Ceilings& ceilings, int64_t bytes, int64_t exponentials) {
  const double memory = static_cast<double>(bytes) / ceilings.copy_bytes_per_second;
  const double arithmetic = static_cast<double>(exponentials) / ceilings.exponentials_per_second;
  return memory > arithmetic ? memory : arithmetic;
}

}  // namespace linescan
