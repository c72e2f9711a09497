// linescan device: what this machine can do, and the environment variables in force.

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/cli/describe_gpu.h"
#include "linescan/device/cpu.h"
#include "linescan/device/environment.h"
#include "linescan/device/gpu.h"
#include "linescan/device/simd_target.h"

namespace linescan::cli {
namespace {

nlohmann::json machine_document() {
  const Cpu& machine = cpu();
  nlohmann::json devices = nlohmann::json::array();
  for (const Gpu& gpu : gpus()) devices.push_back(to_json(gpu));
  nlohmann::json variables = nlohmann::json::object();
  for (const EnvironmentVariable& variable : environment_variables()) {
    const auto value = environment(variable.name);
    variables[variable.name] = value ? nlohmann::json(*value) : nlohmann::json();
  }
  return {{"cpu",
           {{"model", machine.model},
            {"cores", machine.cores},
            {"threads", at::get_num_threads()},
            {"memory_bytes", machine.memory_bytes},
            {"l1_bytes", machine.l1_bytes},
            {"l2_bytes", machine.l2_bytes},
            {"l3_bytes", machine.l3_bytes}}},
          {"system", machine.system},
          {"simd", {{"in_force", simd_target()}, {"available", simd_targets()}}},
          {"libtorch", {{"version", TORCH_VERSION}, {"cpu_capability", at::get_cpu_capability()}}},
          {"gpus", devices},
          {"why_no_gpu", why_no_gpu()},
          {"driver_cuda_version", driver_cuda_version()},
          {"cuda_code", {{"machine_code", built_for().machine_code}, {"ptx", built_for().ptx}}},
          {"environment", variables}};
}

// "sm_80, sm_90a, PTX of compute_80".
std::string describe_code() {
  std::vector<std::string> parts;
  for (const std::string& name : built_for().machine_code) parts.push_back("sm_" + name);
  for (const std::string& name : built_for().ptx) parts.push_back("PTX of compute_" + name);
  return parts.empty() ? "none in this build" : fmt::format("{}", fmt::join(parts, ", "));
}

void print_text() {
  const Cpu& machine = cpu();
  const std::string target = simd_target();  // may refuse LINESCAN_SIMD: before anything is printed
  const auto row = [](const std::string& name, const std::string& value) {
    std::cout << wrap_words(fmt::format("{:<14}", name), value);
  };
  row("processor", machine.model);
  row("cores", fmt::format("{} ({} threads in use)", machine.cores, at::get_num_threads()));
  row("memory", fmt::format("{:.1f} GiB", static_cast<double>(machine.memory_bytes) / (1 << 30)));
  row("caches", fmt::format("L1 {} KiB, L2 {} KiB, L3 {} KiB", machine.l1_bytes / 1024,
                            machine.l2_bytes / 1024, machine.l3_bytes / 1024));
  row("instructions", fmt::format("{} (can run: {})", target, fmt::join(simd_targets(), ", ")));
  row("system", machine.system);
  row("LibTorch", fmt::format("{}, kernels for {}", TORCH_VERSION, at::get_cpu_capability()));
  row("CUDA code", describe_code());
  if (gpus().empty()) row("GPUs", "none: " + why_no_gpu());
  if (const int version = driver_cuda_version(); version > 0)
    row("driver", fmt::format("for CUDA up to {}.{}", version / 1000, version % 1000 / 10));
  for (std::size_t i = 0; i < gpus().size(); ++i) {
    row(fmt::format("cuda:{}", i), gpus()[i].name);
    for (const std::string& line : describe_gpu(gpus()[i])) row("", line);
  }
  std::cout << "\nenvironment\n";
  for (const EnvironmentVariable& variable : environment_variables())
    std::cout << wrap_words(fmt::format("  {:<14}{:<10}", variable.name,
                                        environment(variable.name).value_or("not set")),
                            variable.meaning);
}

}  // namespace

void add_device(CLI::App& command) {
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "one JSON document on standard output");
  add_example(command, "linescan device --json");
  command.callback([json] { *json ? print_json(machine_document()) : print_text(); });
}

}  // namespace linescan::cli
