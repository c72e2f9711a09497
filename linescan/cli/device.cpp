// linescan device: what this machine can do, and the environment variables in force.

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/device/cpu.h"
#include "linescan/device/environment.h"
#include "linescan/device/simd_target.h"

namespace linescan::cli {
namespace {

nlohmann::json describe() {
  const Cpu& machine = cpu();
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
          {"gpus", nlohmann::json::array()},
          {"environment", variables}};
}

void print_text() {
  const Cpu& machine = cpu();
  const std::string target = simd_target();  // may refuse LINESCAN_SIMD: before anything is printed
  const auto row = [](const char* name, const std::string& value) {
    std::cout << fmt::format("{:<14}{}\n", name, value);
  };
  row("processor", machine.model);
  row("cores", fmt::format("{} ({} threads in use)", machine.cores, at::get_num_threads()));
  row("memory", fmt::format("{:.1f} GiB", static_cast<double>(machine.memory_bytes) / (1 << 30)));
  row("caches", fmt::format("L1 {} KiB, L2 {} KiB, L3 {} KiB", machine.l1_bytes / 1024,
                            machine.l2_bytes / 1024, machine.l3_bytes / 1024));
  row("instructions", fmt::format("{} (can run: {})", target, fmt::join(simd_targets(), ", ")));
  row("system", machine.system);
  row("LibTorch", fmt::format("{}, kernels for {}", TORCH_VERSION, at::get_cpu_capability()));
  row("GPUs", "none used: this build has no CUDA code");
  std::cout << "\nenvironment\n";
  for (const EnvironmentVariable& variable : environment_variables())
    std::cout << fmt::format("  {:<14}{:<10}{}\n", variable.name,
                             environment(variable.name).value_or("not set"), variable.meaning);
}

}  // namespace

void add_device(CLI::App& command) {
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "one JSON document on standard output");
  add_example(command, "linescan device --json");
  command.callback([json] { *json ? print_json(describe()) : print_text(); });
}

}  // namespace linescan::cli
