// Integer arithmetic that everyone needs.
#pragma once

#include <cstdint>

namespace linescan {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t multiple) { return ceil_div(a, multiple) * multiple; }

}  // namespace linescan
