// Bytes as people read them, in powers of ten.
#pragma once

#include <cstdint>

namespace linescan {

constexpr double megabytes(int64_t bytes) { return 1e-6 * static_cast<double>(bytes); }
constexpr double gigabytes(int64_t bytes) { return 1e-9 * static_cast<double>(bytes); }

}  // namespace linescan
