// The refusal of what memory does not hold.
#pragma once

#include <cstdint>
#include <string>

#include "linescan/base/error.h"

namespace linescan {

// Unsupported for want of memory: refused before any work is started.
struct OutOfMemory : Unsupported {
  explicit OutOfMemory(const std::string& message, std::int64_t fitting_batch = 0)
      : Unsupported(message), fitting_batch(fitting_batch) {}

  // Items of the batch for which there is memory; 0: none, or not known.
  std::int64_t fitting_batch;
};

}  // namespace linescan
