// What the configurations of all networks ask of their options. All throw InvalidArgument with the option's name,
// its value and what was expected.
#pragma once

#include <cstdint>

#include "linescan/base/error.h"

namespace linescan {

// Large enough for every real network, small enough that sizes derived from it cannot overflow.
inline constexpr int64_t kLargestSize = 1 << 16;
inline constexpr double kLargestRatio = 64;

inline void expect_option(bool good, const char* name, const auto& value, const char* expected) {
  if (!good)
    throw_error<InvalidArgument>("model option {} is {}, expected {}", name, value, expected);
}

inline void expect_size(const char* name, int64_t value, int64_t smallest = 1) {
  if (value < smallest || value > kLargestSize)
    throw_error<InvalidArgument>("model option {} is {}, expected {} to {}", name, value, smallest,
                                 kLargestSize);
}

// Of hidden channels to channels; 0 leaves a part out.
inline void expect_ratio(const char* name, double value) {
  expect_option(value >= 0 && value <= kLargestRatio, name, value, "0 (none) to 64");
}

inline void expect_probability(const char* name, double value) {
  expect_option(value >= 0 && value < 1, name, value, "a number from 0 up to, not including, 1");
}

}  // namespace linescan
