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
  std::string op, shape, dtype = "float32", layout, device = "cpu";
  int64_t threads = at::get_num_threads();
  bool json = false;
};

// What one operator's plan has besides the fields that all have; this one for the scans.
template <class Plan>
nlohmann::json own_fields(const Plan& plan) {
  return {{"channel_block", plan.channel_block},
          {"time_tile", plan.time_tile},
          {"blocks", plan.blocks},
          {"batch_chunks", plan.batch_chunks},
          {"partitions", plan.partitions}};
}

nlohmann::json own_fields(const GatedDeltaRulePlan& plan) {
  return {{"mode", name_of(plan.mode)},        {"chunk", plan.chunk},
          {"column_parts", plan.column_parts}, {"part_columns", plan.part_columns},
          {"head_sums", plan.head_sums},       {"multiplications", plan.multiplications}};
}

nlohmann::json own_fields(const CausalConv1dPlan& plan) {
  return {{"channel_block", plan.channel_block},
          {"time_tile", plan.time_tile},
          {"blocks", plan.blocks},
          {"tiles", plan.tiles},
          {"parts", plan.parts}};
}

template <class Plan>
nlohmann::json to_document(const Plan& plan) {
  nlohmann::json document = own_fields(plan);
  document.update({{"tasks", plan.tasks},
                   {"slots", plan.slots},
                   {"scratch_bytes", plan.scratch_bytes},
                   {"workspace_bytes", plan.workspace_bytes},
                   {"bytes", plan.bytes},
                   {"exponentials", plan.exponentials}});
  return document;
}

template <class Size>
concept PlannedForTheCpu = requires(const Size& size) {
  plan(size, Pass::kForward, int64_t{1});
};

template <class Shape>
void print_cpu_plans(const PlanRequest& request, const Shape& shape) {
  const auto ahead = plan(shape.size, Pass::kForward, request.threads);
  const auto back = plan(shape.size, Pass::kBackward, request.threads);
  if (request.json)
    print_json({{"op", request.op},
                {"problem", nlohmann::json(describe(shape))},
                {"device", "cpu"},
                {"forward", to_document(ahead)},
                {"backward", to_document(back)}});
  else
    std::cout << wrap_words("problem ", text_of(describe(shape))) << '\n'
              << to_string(ahead) << "\n\n"
              << to_string(back) << '\n';
}

template <class Shape>
void print_plans(const PlanRequest& request,
                 Shape parse(std::string_view text, std::string_view dtype,
                             std::string_view layout)) {
  const Shape shape = parse(request.shape, request.dtype, request.layout);
  if (request.device != "cpu") return print_gpu_plans(shape, request.device, request.json);
  if constexpr (PlannedForTheCpu<decltype(shape.size)>)
    print_cpu_plans(request, shape);
  else
    throw_error<Unsupported>(
        "plan: {} has kernels for GPUs alone, on the CPU LibTorch's own are run; expected --device "
        "with a GPU",
        request.op);
}

struct PlannedOperator {
  std::string name;
  void (*print)(const PlanRequest& request);
};

const PlannedOperator kOperators[] = {
    {kScanName, [](const PlanRequest& r) { print_plans(r, parse_scan_shape); }},
    {kSs2dName, [](const PlanRequest& r) { print_plans(r, parse_ss2d_shape); }},
    {kRuleName, [](const PlanRequest& r) { print_plans(r, parse_rule_shape); }},
    {kConvName, [](const PlanRequest& r) { print_plans(r, parse_conv_shape); }},
    {kNormName, [](const PlanRequest& r) { print_plans(r, parse_norm_shape); }},
    {kPlaneConvName, [](const PlanRequest& r) { print_plans(r, parse_plane_conv_shape); }},
};

void run_plan(const PlanRequest& request) {
  const PlannedOperator& op = find_operator(kOperators, request.op);
  expect_within("--threads", request.threads, 1, kMostThreads);
  op.print(request);
}

}  // namespace

void add_plan(CLI::App& command) {
  auto request = std::make_shared<PlanRequest>();
  command
      .add_option(
          "op", request->op,
          "selective_scan, ss2d, gated_delta_rule, causal_conv1d,\nlayer_norm or depthwise_conv")
      ->required();
  command.add_option("--shape", request->shape, std::string(kShapeHelp) + '\n' + kGpuShapeHelp);
  command.add_option("--dtype", request->dtype, "float32, float64, float16 or bfloat16");
  command.add_option("--layout", request->layout, kLayoutHelp);
  command.add_option("--device", request->device,
                     "cpu, cuda, cuda:N, or one that is known:\nv100 a100 rtx3090 rtx4090 l4 h100 "
                     "h200 b200 orin");
  add_number(command, "--threads", request->threads,
             "of the CPU: tasks in flight; decides memory only");
  command.add_flag("--json", request->json, "one JSON document on standard output");
  add_example(command, "linescan plan ss2d --shape batch=8,channels=96,rank=6 --device h100");
  command.callback([request] { run_plan(*request); });
}

}  // namespace linescan::cli
