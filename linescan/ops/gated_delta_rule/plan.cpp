#include "linescan/ops/gated_delta_rule/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/cpu_layout.h"

namespace linescan {
namespace {

// The recurrence is faster below this many tokens a sequence, where a chunk would be half empty, and for
// states of fewer elements, which hardly fill the registers (decision record 0014 has the figures).
constexpr int64_t kFewTokens = 8, kSmallState = 2048;

// Where sequences and heads give fewer tasks than this, the columns of the state are cut up too.
constexpr int64_t kEnoughTasks = 16;

}  // namespace

const char* name_of(GatedDeltaRuleMode mode) {
  switch (mode) {
    case GatedDeltaRuleMode::kChunk:
      return "chunk";
    case GatedDeltaRuleMode::kRecurrent:
      return "recurrent";
    default:
      return "auto";
  }
}

GatedDeltaRuleMode parse_gated_delta_rule_mode(const std::string& name) {
  for (auto mode :
       {GatedDeltaRuleMode::kAuto, GatedDeltaRuleMode::kChunk, GatedDeltaRuleMode::kRecurrent})
    if (name == name_of(mode)) return mode;
  throw_error<InvalidArgument>("gated_delta_rule: mode is '{}', expected auto, chunk or recurrent",
                               name);
}

GatedDeltaRulePlan plan(const GatedDeltaRuleSize& size, Pass pass, int64_t threads) {
  GatedDeltaRulePlan plan;
  plan.pass = pass;
  const int64_t element = size_of(accumulator_of(size.dtype));
  // One task stands in for packed tokens that belong to no sequence at all.
  const int64_t sequences = std::max<int64_t>(size.sequences, size.batch > 0 ? 1 : 0);
  const int64_t average = ceil_div(size.batch * size.length, std::max<int64_t>(sequences, 1));
  const bool few = average < kFewTokens || size.K * size.V < kSmallState;
  plan.mode = size.mode;
  if (plan.mode == GatedDeltaRuleMode::kAuto)
    plan.mode = few ? GatedDeltaRuleMode::kRecurrent : GatedDeltaRuleMode::kChunk;
  if (pass == Pass::kBackward) plan.mode = GatedDeltaRuleMode::kChunk;
  plan.chunk = gated_delta_rule_chunk(pass);

  const int64_t rows = sequences * size.value_heads;
  const int64_t column_blocks = ceil_div(size.V, kColumnBlock);
  const int64_t wanted_parts =
      rows >= kEnoughTasks ? 1 : ceil_div(kEnoughTasks, std::max<int64_t>(rows, 1));
  plan.part_columns =
      ceil_div(column_blocks, std::min(wanted_parts, std::max<int64_t>(column_blocks, 1))) *
      kColumnBlock;
  plan.part_columns = std::max<int64_t>(1, std::min(plan.part_columns, size.V));
  plan.column_parts = ceil_div(size.V, plan.part_columns);
  plan.tasks = rows * plan.column_parts;
  plan.slots = std::max<int64_t>(1, std::min(plan.tasks, threads));

  const ScratchSize scratch{
      .chunk = plan.chunk, .K = size.K, .columns = plan.part_columns, .length = size.length};
  plan.scratch_bytes = scratch_bytes(scratch, pass, element);
  plan.workspace_bytes = plan.slots * plan.scratch_bytes + bounds_bytes(size) + kScratchSlack;
  if (pass == Pass::kBackward) {
    plan.head_sums = size.value_heads / std::max<int64_t>(size.heads, 1) * plan.column_parts;
    plan.workspace_bytes +=
        element * partial_sums(size, plan.head_sums, plan.column_parts, plan.tasks);
  }

  const int64_t tokens = size.batch * size.length, value_rows = tokens * size.value_heads;
  const int64_t data = size_of(size.dtype);
  const int64_t inputs =
      data * (2 * tokens * size.heads * size.K + value_rows * size.V) + 2 * element * value_rows;
  const int64_t states = size.sequences * size.value_heads * size.K * size.V * element;
  const int64_t times = pass == Pass::kForward ? 1 : 2;
  plan.bytes = times * (inputs + states) + data * value_rows * size.V;
  plan.multiplications = (pass == Pass::kForward ? 3 : 8) * value_rows * size.K * size.V;
  plan.exponentials = plan.mode == GatedDeltaRuleMode::kChunk
                          ? value_rows * (plan.chunk + 3) / 2 * plan.column_parts
                          : value_rows * plan.column_parts;
  return plan;
}

std::string to_string(const GatedDeltaRulePlan& plan) {
  std::string text = fmt::format(
      "gated_delta_rule {} on the CPU\n"
      "  mode            {}\n"
      "  chunk           {}   tokens worked on at once\n"
      "  columns         {}   of the state, in each of {} parts\n"
      "  tasks           {}   in {} slots\n",
      name_of(plan.pass), name_of(plan.mode), plan.chunk, plan.part_columns, plan.column_parts,
      plan.tasks, plan.slots);
  if (plan.pass == Pass::kBackward)
    text += fmt::format("  sums            {}   gradients added up for each head of q and k\n",
                        plan.head_sums);
  text += fmt::format(
      "  workspace       {} bytes ({} a slot)\n"
      "  bytes           {}\n"
      "  exponentials    {}\n"
      "  multiply-adds   {}   with states",
      plan.workspace_bytes, plan.scratch_bytes, plan.bytes, plan.exponentials,
      plan.multiplications);
  return text;
}

}  // namespace linescan
