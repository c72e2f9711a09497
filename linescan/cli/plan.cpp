// linescan plan: how an operator would run a problem, on this machine's processor or on a GPU that
// need not be here, without running it.

#include <ATen/Parallel.h>

#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/cli/plan_gpu.h"
#include "linescan/cli/shape_options.h"

namespace linescan::cli {
namespace {

struct PlanRequest {
  std::string op, shape, dtype = "float32", layout = "channels", device = "cpu";
  int64_t threads = at::get_num_threads();
  bool json = false;
};

// The fields that the scans' plans for the CPU have.
template <class Plan>
nlohmann::json to_document(const Plan& plan) {
  return {{"channel_block", plan.channel_block},
          {"time_tile", plan.time_tile},
          {"blocks", plan.blocks},
          {"batch_chunks", plan.batch_chunks},
          {"partitions", plan.partitions},
          {"tasks", plan.tasks},
          {"slots", plan.slots},
          {"scratch_bytes", plan.scratch_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"bytes", plan.bytes},
          {"exponentials", plan.exponentials}};
}

nlohmann::json to_document(const GatedDeltaRulePlan& plan) {
  return {{"mode", name_of(plan.mode)},
          {"chunk", plan.chunk},
          {"column_parts", plan.column_parts},
          {"part_columns", plan.part_columns},
          {"head_sums", plan.head_sums},
          {"tasks", plan.tasks},
          {"slots", plan.slots},
          {"scratch_bytes", plan.scratch_bytes},
          {"workspace_bytes", plan.workspace_bytes},
          {"bytes", plan.bytes},
          {"exponentials", plan.exponentials},
          {"multiplications", plan.multiplications}};
}

template <class Size>
void print_plans(const PlanRequest& request, const Size& size) {
  if constexpr (std::is_same_v<Size, GatedDeltaRuleSize>) {
    if (request.device != "cpu")
      throw_error<Unsupported>("plan: {} is planned for the CPU, not for {}", request.op,
                               request.device);
  } else if (request.device != "cpu") {
    return print_gpu_plans(size, request.device, request.json);
  }
  const auto ahead = plan(size, Pass::kForward, request.threads);
  const auto back = plan(size, Pass::kBackward, request.threads);
  if (request.json)
    print_json({{"op", request.op},
                {"device", "cpu"},
                {"forward", to_document(ahead)},
                {"backward", to_document(back)}});
  else
    std::cout << to_string(ahead) << "\n\n" << to_string(back) << '\n';
}

void run_plan(const PlanRequest& request) {
  const std::string known[] = {kScanName, kSs2dName, kRuleName};
  check_operator(request.op, known);
  if (request.threads < 1)
    throw_error<InvalidArgument>("--threads is {}, expected 1 or more", request.threads);
  if (request.op == kScanName)
    print_plans(request, parse_scan_shape(request.shape, request.dtype, request.layout).size);
  else if (request.op == kRuleName)
    print_plans(request, parse_rule_shape(request.shape, request.dtype).size);
  else
    print_plans(request, parse_ss2d_shape(request.shape, request.dtype, request.layout).size);
}

}  // namespace

void add_plan(CLI::App& command) {
  auto request = std::make_shared<PlanRequest>();
  command.add_option("op", request->op, "selective_scan, ss2d or gated_delta_rule")->required();
  command.add_option("--shape", request->shape, std::string(kShapeHelp) + '\n' + kRuleShapeHelp);
  command.add_option("--dtype", request->dtype, "float32, float64, float16 or bfloat16");
  command.add_option("--layout", request->layout, "which index is adjacent: length or channels");
  command.add_option("--device", request->device,
                     "cpu, cuda, cuda:N, or one that is known:\nv100 a100 rtx3090 rtx4090 l4 h100 "
                     "h200 b200 orin");
  command.add_option("--threads", request->threads,
                     "of the CPU: tasks in flight; decides memory only");
  command.add_flag("--json", request->json, "one JSON document on standard output");
  add_example(command, "linescan plan ss2d --shape batch=8,channels=96,rank=6 --device h100");
  command.callback([request] { run_plan(*request); });
}

}  // namespace linescan::cli
