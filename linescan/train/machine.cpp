#include "linescan/train/machine.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "linescan/device/cpu.h"
#include "linescan/device/gpu.h"
#include "linescan/device/simd_target.h"
#include "linescan/version.h"

namespace linescan {

std::string instruction_sets() {
  return fmt::format("{}, libtorch {}", simd_target(), at::get_cpu_capability());
}

namespace {

// With one digit behind the point.
double gigabytes(int64_t bytes) { return std::round(static_cast<double>(bytes) / 1e8) / 10; }

}  // namespace

nlohmann::json describe_machine(const Compute& compute) {
  const Cpu& machine = cpu();
  nlohmann::json document = {{"cpu", machine.model},
                             {"cores", machine.cores},
                             {"threads", at::get_num_threads()},
                             {"memory_gb", gigabytes(machine.memory_bytes)},
                             {"simd", instruction_sets()},
                             {"os", machine.system},
                             {"linescan", kVersion},
                             {"libtorch", TORCH_VERSION},
                             {"compiler", "g++ " __VERSION__}};
  if (compute.on_gpu()) {
    const Gpu& gpu = gpus().at(compute.device.index());
    document["gpu"] = gpu.name;
    document["gpu_memory_gb"] = gigabytes(gpu.memory_bytes);
  }
  return document;
}

}  // namespace linescan
