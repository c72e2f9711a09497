// Measured values as the tables show them: plain ASCII, without units, which stand in the heading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

// The coefficient of variation in percent; "-" for what a single value does not tell.
std::string spread(const Timed& timed);

// Beyond it a median is no figure that others should believe.
inline constexpr double kMostVariation = 0.2;
inline constexpr const char* kNoisy = "~";  // stands behind such a figure

// The rate with its mark, if it deserves one.
std::string marked_rate(const Measurement& measurement);

// What has to be known about the spread of such figures: a sentence that explains the mark, if one of
// them has it, and one if there are single steps.
std::vector<std::string> notes_on_spread(const std::vector<Measurement>& measurements);

}  // namespace linescan::lab
