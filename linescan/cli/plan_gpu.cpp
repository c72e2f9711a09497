#include "linescan/cli/plan_gpu.h"

#include <fmt/format.h>

#include <iostream>
#include <optional>
#include <utility>

#include "linescan/binding/ss2d_by_scans.h"
#include "linescan/cli/command.h"
#include "linescan/cli/describe_gpu.h"
#include "linescan/ops/causal_conv1d/gpu_plan.h"
#include "linescan/ops/depthwise_conv/gpu_plan.h"
#include "linescan/ops/gated_delta_rule/gpu_plan.h"
#include "linescan/ops/layer_norm/gpu_plan.h"
#include "linescan/ops/selective_scan/gpu_plan.h"
#include "linescan/ops/ss2d/gpu_plan.h"

namespace linescan::cli {
namespace {

using nlohmann::json;

// ---- What one operator's plan has besides the fields that all have -------------------------------

json own_fields(const SelectiveScanGpuPlan& plan) {
  return {{"one_state", plan.one_state},
          {"short_rows", plan.short_rows},
          {"whole_rows", plan.whole_rows},
          {"many_states", plan.many_states},
          {"state_lanes", plan.state_lanes},
          {"walkers", plan.walkers},
          {"places", plan.places},
          {"ahead_lanes", plan.ahead_lanes},
          {"together", plan.together},
          {"kept_steps", plan.kept_steps},
          {"kept_bytes", plan.kept_bytes},
          {"segments", plan.segments},
          {"shares", plan.shares},
          {"warps", plan.warps},
          {"rows", plan.rows},
          {"blocks", plan.blocks},
          {"tiles", plan.tiles},
          {"tail", plan.tail},
          {"state_tile", plan.state_tile},
          {"slice", plan.slice},
          {"shared_carries", plan.shared_carries},
          {"grid", plan.grid},
          {"block", plan.block},
          {"shared_bytes", plan.shared_bytes},
          {"blocks_per_multiprocessor", plan.blocks_per_multiprocessor},
          {"warps_per_multiprocessor", plan.warps_per_multiprocessor}};
}

json own_fields(const Ss2dGpuPlan& plan) {
  return {{"tile_height", plan.tile_height},
          {"tile_width", plan.tile_width},
          {"tile_rows", plan.tile_rows},
          {"tile_columns", plan.tile_columns},
          {"chunks", plan.chunks},
          {"pieces", plan.pieces},
          {"packed", plan.packed},
          {"walks_states", plan.walks_states},
          {"walks_images", plan.walks_images},
          {"cells", plan.cells},
          {"kept", plan.kept},
          {"stores_delta", plan.stores_delta},
          {"at_once", plan.at_once},
          {"product_side", plan.product_side},
          {"product_columns", plan.product_columns},
          {"delta_parts", plan.delta_parts},
          {"pieces_slice", plan.pieces_slice},
          {"slice", plan.slice},
          {"channel_groups", plan.channel_groups},
          {"grid", plan.grid},
          {"block", plan.block},
          {"shared_bytes", plan.shared_bytes},
          {"blocks_per_multiprocessor", plan.blocks_per_multiprocessor},
          {"warps_per_multiprocessor", plan.warps_per_multiprocessor}};
}

// Sequences that are not packed.
struct PlainRule {
  GatedDeltaRuleSize size;
};
GatedDeltaRuleGpuPlan plan(const PlainRule& rule, Pass pass, const Gpu& gpu) {
  GatedDeltaRuleSize size = rule.size;
  size.kept_states = gpu_kept_states(size, /*packed=*/false, gpu_piece(size, /*packed=*/false)) >
                     0;  // of a training
  return linescan::plan(size, /*packed=*/false, pass, gpu);
}

json own_fields(const GatedDeltaRuleGpuPlan& plan) {
  json document = {{"mode", name_of(plan.mode)},
                   {"chunk", plan.chunk},
                   {"chunks", plan.chunks},
                   {"column_warps", plan.column_warps},
                   {"key_warps", plan.key_warps},
                   {"column_parts", plan.column_parts},
                   {"stages", plan.stages},
                   {"multiplications", plan.multiplications},
                   {"pieces", plan.pieces},
                   {"piece_tokens", plan.piece.tokens},
                   {"segment", plan.piece.segment},
                   {"split", plan.piece.split},
                   {"kept_bytes", plan.kept_bytes},
                   {"keeps_records", plan.piece.keeps_records},
                   {"keeps_states", plan.piece.keeps_states},
                   {"corrections_take_place", plan.corrections_take_place},
                   {"scans_side_by_side", plan.scans_side_by_side},
                   {"makes_records", plan.makes_records}};
  for (const auto& [name, launch] : {std::pair{"records", plan.records},
                                     {"scan", plan.scan},
                                     {"segments_alone", plan.ends},
                                     {"chain", plan.chain},
                                     {"reverse_scan", plan.reverse_scan},
                                     {"gradients", plan.gradients}})
    if (launch.grid > 0)
      document[name] = {
          {"grid", launch.grid}, {"block", launch.block}, {"shared_bytes", launch.shared_bytes}};
  return document;
}

json own_fields(const CausalConv1dGpuPlan& plan) {
  return {{"vector", plan.vector},
          {"run", plan.run},
          {"runs_an_item", plan.runs_an_item},
          {"packs_a_block", plan.packs_a_block},
          {"runs_a_block", plan.runs_a_block},
          {"chunks", plan.chunks},
          {"groups", plan.groups},
          {"grid", plan.grid()},
          {"block", plan.block},
          {"shared_bytes", plan.shared_bytes}};
}

json own_fields(const LayerNormGpuPlan& plan) {
  return {{"lanes", plan.lanes}, {"vectors", plan.vectors},
          {"grid", plan.grid},   {"rows_a_block", plan.rows_a_block},
          {"block", plan.block}, {"shared_bytes", plan.shared_bytes}};
}

json strip_fields(const ConvStrips& strips) {
  return {{"vector", strips.vector},
          {"rows", strips.rows},
          {"segment", strips.segment},
          {"bands", strips.bands},
          {"segments", strips.segments},
          {"packs_a_block", strips.packs_a_block},
          {"strips_a_block", strips.strips_a_block},
          {"chunks", strips.chunks},
          {"groups", strips.groups},
          {"grid", strips.grid()},
          {"block", strips.block},
          {"shared_bytes", strips.shared_bytes}};
}
json own_fields(const DepthwiseConvGpuPlan& plan) {
  json document = strip_fields(plan.convolution);
  if (plan.pass == Pass::kBackward) document["sums"] = strip_fields(plan.sums);
  return document;
}

// ---- What all have -------------------------------------------------------------------------------

template <class Plan>
int64_t exponentials_of(const Plan& plan) {
  if constexpr (requires { plan.exponentials; })
    return plan.exponentials;
  else
    return 0;
}

const char* decided_by(const GpuFloor& floor) {
  return floor.memory_decides() ? "memory" : "exponentials";
}

// What is kept between passes.
template <class Size, class Plan>
int64_t kept_bytes_of(const Size&, const Plan& plan) {
  if constexpr (requires { plan.kept_bytes; }) return plan.kept_bytes;
  return 0;
}
int64_t kept_bytes_of(const Ss2dSize& size, const Ss2dGpuPlan&) {
  return size.kept_states ? gpu_kept_states(size) * static_cast<int64_t>(sizeof(float)) : 0;
}

// What a pass of an operator would be, or why the device cannot run it.
template <class Plan>
struct PlannedPass {
  std::optional<Plan> plan;
  Pass pass;
  std::string refusal;
  int64_t kept_bytes = 0;

  // Bytes of the device's memory: inputs, outputs, workspace, and what is kept between passes.
  int64_t needed_bytes() const { return plan->bytes + plan->workspace_bytes + kept_bytes; }
  bool fits_memory(const Gpu& gpu) const {
    return gpu.memory_bytes <= 0 || needed_bytes() <= gpu.memory_bytes;
  }
  bool runs(const Gpu& gpu) const { return plan.has_value() && fits_memory(gpu); }
};

template <class Size>
auto try_plan(const Size& size, Pass pass, const Gpu& gpu) {
  PlannedPass<decltype(plan(size, pass, gpu))> planned;
  planned.pass = pass;
  try {
    planned.plan = plan(size, pass, gpu);
    planned.kept_bytes = kept_bytes_of(size, *planned.plan);
  } catch (const Unsupported& error) {
    planned.refusal = error.what();
  }
  return planned;
}

template <class Plan>
json to_document(const PlannedPass<Plan>& planned, const Gpu& gpu) {
  if (!planned.plan) return {{"refused", planned.refusal}};
  const Plan& plan = *planned.plan;
  const GpuFloor floor = floor_on(gpu, plan.bytes, exponentials_of(plan));
  json document = own_fields(plan);
  if constexpr (requires { variant_of(plan); }) document["variant"] = variant_of(plan);
  document.update({{"shared_limit", gpu.shared_per_block},
                   {"workspace_bytes", plan.workspace_bytes},
                   {"bytes", plan.bytes},
                   {"needed_bytes", planned.needed_bytes()},
                   {"fits_memory", planned.fits_memory(gpu)},
                   {"exponentials", exponentials_of(plan)},
                   {"floor_ms", floor.seconds() * 1e3},
                   {"memory_ms", floor.memory_seconds * 1e3},
                   {"exponential_ms", floor.exponential_seconds * 1e3},
                   {"decided_by", decided_by(floor)}});
  return document;
}

std::string gibibytes(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
}

template <class Plan>
void print_text(const PlannedPass<Plan>& planned, const Gpu& gpu) {
  if (!planned.plan) {
    std::cout << fmt::format("{} {} on a GPU\n", Plan::kOperator, name_of(planned.pass))
              << wrap_words("  does not fit    ", planned.refusal) << '\n';
    return;
  }
  const Plan& plan = *planned.plan;
  const GpuFloor floor = floor_on(gpu, plan.bytes, exponentials_of(plan));
  std::cout << to_string(plan)
            << fmt::format("\n  needs           {} of the device's {}{}\n",
                           gibibytes(planned.needed_bytes()), gibibytes(gpu.memory_bytes),
                           planned.fits_memory(gpu) ? "" : ": does not fit");
  if (floor.seconds() > 0)
    std::cout << fmt::format(
        "  floor           {:.4f} ms, decided by {}\n"
        "                  (memory {:.4f} ms, exponentials {:.4f} ms)\n\n",
        floor.seconds() * 1e3, decided_by(floor), floor.memory_seconds * 1e3,
        floor.exponential_seconds * 1e3);
  else
    std::cout << "  floor           unknown: the driver does not tell the device's rates\n\n";
}

// Both passes of an operator on a device.
template <class Size>
struct PlannedPasses {
  using Plan = decltype(plan(std::declval<Size>(), Pass::kForward, std::declval<Gpu>()));
  const Gpu& gpu;
  PlannedPass<Plan> ahead, back;

  PlannedPasses(const Size& forward, const Size& backward, const Gpu& gpu)
      : gpu(gpu),
        ahead(try_plan(forward, Pass::kForward, gpu)),
        back(try_plan(backward, Pass::kBackward, gpu)) {
    // Nothing is said about a problem of which nothing fits.
    if (!ahead.plan && !back.plan) throw Unsupported(ahead.refusal);
  }
  json document(const char* op) const {
    return {{"op", op}, {"forward", to_document(ahead, gpu)}, {"backward", to_document(back, gpu)}};
  }
  void print() const {
    print_text(ahead, gpu);
    print_text(back, gpu);
  }
  bool run() const { return ahead.runs(gpu) && back.runs(gpu); }
};

const Gpu& gpu_for(const char* op, DType dtype, const std::string& device) {
  const Gpu& gpu = find_gpu(device);
  if (dtype == DType::kFloat64)
    throw_error<Unsupported>("plan {}: float64 runs on the CPU alone, not on {}", op, gpu.name);
  return gpu;
}

void print_json_with_device(json document, const json& problem, const Gpu& gpu) {
  document["problem"] = problem;
  document["device"] = to_json(gpu);
  print_json(document);
}

template <class Shape>
void print_problem(const Shape& shape) {
  std::cout << wrap_words("problem ", text_of(describe(shape))) << '\n';
}

void print_device(const Gpu& gpu) {
  std::cout << gpu.name << '\n';
  for (const std::string& line : describe_gpu(gpu)) std::cout << wrap_words("  ", line);
}

template <class Shape, class Size>
void print(const char* op, const Shape& shape, const Size& size, const std::string& device,
           bool json) {
  const Gpu& gpu = gpu_for(op, shape.size.dtype, device);
  if constexpr (requires { check_gpu_counts(shape.size); }) check_gpu_counts(shape.size);
  const PlannedPasses<Size> passes(size, size, gpu);
  if (json) {
    print_json_with_device(passes.document(op), describe(shape), gpu);
  } else {
    print_problem(shape);
    passes.print();
    print_device(gpu);
  }
  if (!passes.run()) throw FoundBad();
}

}  // namespace

void print_gpu_plans(const ScanShape& shape, const std::string& device, bool json) {
  SelectiveScanSize size = shape.size;
  size.kept_states = gpu_kept_states(size) > 0;  // of a training
  print(kScanName, shape, size, device, json);
}

void print_gpu_plans(const Ss2dShape& shape, const std::string& device, bool json) {
  Ss2dSize size = shape.size;
  const Gpu& gpu = gpu_for(kSs2dName, size.dtype, device);
  check_gpu_counts(size);
  size.kept_states = gpu_kept_states(size) > 0;  // of a training
  if (!scans_pay(size, shape.routes, gpu)) return print(kSs2dName, shape, size, device, json);
  const SelectiveScanSize ahead = scan_of_part(size, Pass::kForward),
                          back = scan_of_part(size, Pass::kBackward);
  const PlannedPasses<Ss2dSize> own(size, size, gpu);
  const PlannedPasses<SelectiveScanSize> scans(ahead, back, gpu);
  const std::string note = fmt::format(
      "The plans above are those of ss2d's own kernels. With {} states the operator for LibTorch "
      "does not run them on a GPU: it calls selective_scan, whose steps are the pixels of a route, "
      "for {} images forward and {} backward at a time, planned below.",
      size.states, ahead.batch, back.batch);
  if (json) {
    auto document = own.document(kSs2dName);
    document["by_scans"] = scans.document(kScanName);
    document["by_scans"]["images"] = {ahead.batch, back.batch};
    document["note"] = note;
    print_json_with_device(std::move(document), describe(shape), gpu);
  } else {
    print_problem(shape);
    own.print();
    std::cout << wrap_words("", note) << '\n';
    scans.print();
    print_device(gpu);
  }
  if (!scans.run()) throw FoundBad();
}

void print_gpu_plans(const RuleShape& shape, const std::string& device, bool json) {
  print(kRuleName, shape, PlainRule{shape.size}, device, json);
}

void print_gpu_plans(const ConvShape& shape, const std::string& device, bool json) {
  const bool packs = shape.channels_last && shape.size.channels % 4 == 0;
  print(kConvName, shape, CausalConv1dGpuSize{shape.size, packs}, device, json);
}

void print_gpu_plans(const NormShape& shape, const std::string& device, bool json) {
  print(kNormName, shape, shape.size, device, json);
}

void print_gpu_plans(const PlaneConvShape& shape, const std::string& device, bool json) {
  print(kPlaneConvName, shape, shape.size, device, json);
}

}  // namespace linescan::cli
