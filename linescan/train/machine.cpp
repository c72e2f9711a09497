#include "linescan/train/machine.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "linescan/base/units.h"
#include "linescan/binding/gpu_runtime.h"
#include "linescan/device/cpu.h"
#include "linescan/device/gpu.h"
#include "linescan/device/process.h"
#include "linescan/device/simd_target.h"
#include "linescan/version.h"

namespace linescan {

std::string instruction_sets() {
  return fmt::format("{}, libtorch {}", simd_target(), at::get_cpu_capability());
}

namespace {

// With one digit behind the point.
double rounded_gigabytes(int64_t bytes) { return std::round(10 * gigabytes(bytes)) / 10; }

std::string memory_of(const c10::Device& gpu) {
  const GpuRuntime::Memory memory = gpu_runtime().memory(gpu);
  return fmt::format("{} GB of tensors, {} GB reserved, {} of {} GB free",
                     rounded_gigabytes(memory.allocated), rounded_gigabytes(memory.reserved),
                     rounded_gigabytes(memory.free), rounded_gigabytes(memory.total));
}

}  // namespace

nlohmann::json describe_machine(const Compute& compute) {
  const Cpu& machine = cpu();
  nlohmann::json document = {{"cpu", machine.model},
                             {"cores", machine.cores},
                             {"threads", at::get_num_threads()},
                             {"memory_gb", rounded_gigabytes(machine.memory_bytes)},
                             {"simd", instruction_sets()},
                             {"os", machine.system},
                             {"linescan", kVersion},
                             {"libtorch", TORCH_VERSION},
                             {"compiler", "g++ " __VERSION__}};
  if (compute.on_gpu()) {
    const Gpu& gpu = gpus().at(compute.device.index());
    document["gpu"] = gpu.name;
    document["gpu_memory_gb"] = rounded_gigabytes(gpu.memory_bytes);
  }
  return document;
}

void set_threads(const Recipe& recipe) {
  // LibTorch alone would leave the second thread of every core idle.
  static const int64_t usual = std::getenv("OMP_NUM_THREADS")
                                   ? at::get_num_threads()
                                   : std::max(1u, std::thread::hardware_concurrency());
  at::set_num_threads(static_cast<int>(recipe.threads > 0 ? recipe.threads : usual));
}

int64_t memory_in_use(const Compute& compute) {
  return compute.on_gpu() ? gpu_runtime().memory(compute.device).allocated : resident_memory();
}

std::string describe_memory(const Compute& compute) {
  const std::string of_the_machine =
      fmt::format("{:.0f} MB are in use and {:.0f} MB free", megabytes(resident_memory()),
                  megabytes(available_memory()));
  if (!compute.on_gpu()) return of_the_machine;
  std::string of_the_gpu;
  try {
    of_the_gpu = memory_of(compute.device);
  } catch (const c10::Error&) {  // after an error of a kernel it answers nothing any more
    of_the_gpu = "does not answer";
  }
  return fmt::format("the GPU: {}; the machine: {}", of_the_gpu, of_the_machine);
}

std::function<std::string()> gpu_probe(const Compute& compute) {
  if (!compute.on_gpu()) return {};
  return [device = compute.device, empty = gpu_runtime().queue_is_empty(compute.device)] {
    return fmt::format("queue {}; {}", empty() ? "empty" : "not empty", memory_of(device));
  };
}

}  // namespace linescan
