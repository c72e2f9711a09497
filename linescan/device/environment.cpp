#include "linescan/device/environment.h"

#include <cstdlib>

namespace linescan {

std::span<const EnvironmentVariable> environment_variables() {
  static constexpr EnvironmentVariable kVariables[] = {
      {kSimdVariable, "instruction set of the CPU kernels: AVX3 (AVX-512), AVX2 or SCALAR"},
      {kDataVariable, "folder with the data sets; default /usr/share/datasets"},
  };
  return kVariables;
}

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

}  // namespace linescan
