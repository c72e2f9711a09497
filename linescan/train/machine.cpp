#include "linescan/train/machine.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "linescan/device/cpu.h"
#include "linescan/device/simd_target.h"
#include "linescan/version.h"

namespace linescan {

std::string instruction_sets() {
  return fmt::format("{}, libtorch {}", simd_target(), at::get_cpu_capability());
}

nlohmann::json describe_machine() {
  const Cpu& machine = cpu();
  const double gigabytes = static_cast<double>(machine.memory_bytes) / 1e9;
  return {{"cpu", machine.model},
          {"cores", machine.cores},
          {"threads", at::get_num_threads()},
          {"memory_gb", std::round(10 * gigabytes) / 10},
          {"simd", instruction_sets()},
          {"os", machine.system},
          {"linescan", kVersion},
          {"libtorch", TORCH_VERSION},
          {"compiler", "g++ " __VERSION__}};
}

}  // namespace linescan
