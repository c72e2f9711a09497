#include "linescan/cli/plan_gpu.h"

#include <fmt/format.h>

#include <iostream>

#include "linescan/cli/command.h"
#include "linescan/cli/describe_gpu.h"
#include "linescan/cli/shape_options.h"
#include "linescan/ops/selective_scan/gpu_plan.h"
#include "linescan/ops/ss2d/gpu_plan.h"

namespace linescan::cli {
namespace {

// What one operator's plan has besides the fields that all have.
nlohmann::json own_fields(const SelectiveScanGpuPlan& plan) {
  return {{"segments", plan.segments}, {"warps", plan.warps},
          {"rows", plan.rows},         {"blocks", plan.blocks},
          {"tiles", plan.tiles},       {"state_tile", plan.state_tile},
          {"slice", plan.slice},       {"shared_carries", plan.shared_carries}};
}
nlohmann::json own_fields(const Ss2dGpuPlan& plan) {
  return {{"tile_height", plan.tile_height},
          {"tile_width", plan.tile_width},
          {"tile_rows", plan.tile_rows},
          {"tile_columns", plan.tile_columns},
          {"chunks", plan.chunks},
          {"pieces", plan.pieces},
          {"packed", plan.packed},
          {"slice", plan.slice},
          {"channel_groups", plan.channel_groups}};
}

const char* decided_by(const GpuFloor& floor) {
  return floor.memory_decides() ? "memory" : "exponentials";
}

template <class Plan>
nlohmann::json to_document(const Plan& plan, const Gpu& gpu) {
  const GpuFloor floor = floor_on(gpu, plan.bytes, plan.exponentials);
  nlohmann::json document = own_fields(plan);
  document.update({{"grid", plan.grid},
                   {"block", plan.block},
                   {"shared_bytes", plan.shared_bytes},
                   {"shared_limit", gpu.shared_per_block},
                   {"blocks_per_multiprocessor", plan.blocks_per_multiprocessor},
                   {"warps_per_multiprocessor", plan.warps_per_multiprocessor},
                   {"workspace_bytes", plan.workspace_bytes},
                   {"bytes", plan.bytes},
                   {"exponentials", plan.exponentials},
                   {"floor_ms", floor.seconds() * 1e3},
                   {"memory_ms", floor.memory_seconds * 1e3},
                   {"exponential_ms", floor.exponential_seconds * 1e3},
                   {"decided_by", decided_by(floor)}});
  return document;
}

template <class Plan>
void print_text(const Plan& plan, const Gpu& gpu) {
  const GpuFloor floor = floor_on(gpu, plan.bytes, plan.exponentials);
  std::cout << to_string(plan)
            << fmt::format(
                   "\n  floor           {:.4f} ms, decided by {}\n"
                   "                  (memory {:.4f} ms, exponentials {:.4f} ms)\n\n",
                   floor.seconds() * 1e3, decided_by(floor), floor.memory_seconds * 1e3,
                   floor.exponential_seconds * 1e3);
}

template <class Size>
void print(const char* op, const Size& size, const std::string& device, bool json) {
  const Gpu& gpu = find_gpu(device);
  if (size.dtype == DType::kFloat64)
    throw_error<Unsupported>("plan {}: float64 runs on the CPU alone, not on {}", op, gpu.name);
  const auto ahead = plan(size, Pass::kForward, gpu);
  const auto back = plan(size, Pass::kBackward, gpu);
  if (json)
    return print_json({{"op", op},
                       {"device", to_json(gpu)},
                       {"forward", to_document(ahead, gpu)},
                       {"backward", to_document(back, gpu)}});
  print_text(ahead, gpu);
  print_text(back, gpu);
  std::cout << gpu.name << '\n';
  for (const std::string& line : describe_gpu(gpu)) std::cout << wrap_words("  ", line);
}

}  // namespace

void print_gpu_plans(const SelectiveScanSize& size, const std::string& device, bool json) {
  print(kScanName, size, device, json);
}

void print_gpu_plans(const Ss2dSize& size, const std::string& device, bool json) {
  print(kSs2dName, size, device, json);
}

}  // namespace linescan::cli
