// Measured values as the tables show them: plain ASCII, without units, which stand in the heading.
#pragma once

#include <cstdint>
#include <string>

#include "linescan/lab/measurement.h"

namespace linescan::lab {

// Three or four digits that matter: "1234", "56.7", "0.123"; "-" for NaN and infinity.
std::string figure(double value);

// 0.1234 -> "12.3"
std::string percent(double share);

std::string ms(double seconds);
std::string mb(int64_t bytes);
std::string kib(int64_t bytes);

// Stands for a figure that could not be had because memory ran out.
inline constexpr const char* kNoMemory = "no memory";

// Images a second, or kNoMemory where not even one image fitted.
std::string rate(const Measurement& measurement);

}  // namespace linescan::lab
