#include "linescan/cli/describe_gpu.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace linescan::cli {

nlohmann::json to_json(const Gpu& gpu) {
  const CodeAnswer code = code_for(gpu);
  return {{"name", gpu.name},
          {"capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
          {"multiprocessors", gpu.multiprocessors},
          {"shared_per_block", gpu.shared_per_block},
          {"shared_per_multiprocessor", gpu.shared_per_multiprocessor},
          {"threads_per_multiprocessor", gpu.threads_per_multiprocessor},
          {"blocks_per_multiprocessor", gpu.blocks_per_multiprocessor},
          {"registers_per_multiprocessor", gpu.registers_per_multiprocessor},
          {"l2_bytes", gpu.l2_bytes},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_bytes_per_second", gpu.memory_bytes_per_second},
          {"clock_hz", gpu.clock_hz},
          {"code_runs", code.runs},
          {"code", code.text}};
}

std::vector<std::string> describe_gpu(const Gpu& gpu) {
  return {fmt::format("compute capability {}.{}, {} SMs at {:.2f} GHz", gpu.major, gpu.minor,
                      gpu.multiprocessors, gpu.clock_hz / 1e9),
          fmt::format("shared memory {} KiB a block, {} KiB an SM", gpu.shared_per_block / 1024,
                      gpu.shared_per_multiprocessor / 1024),
          fmt::format("L2 {:.1f} MiB, memory {:.1f} GiB at {}",
                      static_cast<double>(gpu.l2_bytes) / (1 << 20),
                      static_cast<double>(gpu.memory_bytes) / (1 << 30),
                      gpu.memory_bytes_per_second > 0
                          ? fmt::format("{:.0f} GB/s", gpu.memory_bytes_per_second / 1e9)
                          : "a rate that the driver does not tell"),
          "code: " + code_for(gpu).text};
}

GpuFloor floor_on(const Gpu& gpu, int64_t bytes, int64_t exponentials) {
  const auto seconds = [](int64_t work, double rate) {
    return rate > 0 ? static_cast<double>(work) / rate : 0;  // a driver may not tell the rate
  };
  return {seconds(bytes, gpu.memory_bytes_per_second),
          seconds(exponentials, gpu.specials_per_second())};
}

}  // namespace linescan::cli
