// The environment variables that Linescan obeys: all of them, read here and nowhere else.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace linescan {

struct EnvironmentVariable {
  const char* name;
  const char* meaning;
};

// In the order in which `linescan device` prints them.
std::span<const EnvironmentVariable> environment_variables();

// The value in force, if the variable is set and not empty.
std::optional<std::string> environment(const char* name);

inline constexpr const char* kSimdVariable = "LINESCAN_SIMD";
inline constexpr const char* kDataVariable = "LINESCAN_DATA";

}  // namespace linescan
