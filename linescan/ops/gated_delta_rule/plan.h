// How gated_delta_rule will run a problem: a plain value, made by a pure function, printable without
// running anything.
#pragma once

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"

namespace linescan {

// Which of two algorithms computes the outputs; auto takes what was measured to be faster. Gradients
// are always computed chunk by chunk.
enum class GatedDeltaRuleMode { kAuto, kChunk, kRecurrent };
const char* name_of(GatedDeltaRuleMode mode);

// The mode called "auto", "chunk" or "recurrent"; throws InvalidArgument for anything else.
GatedDeltaRuleMode parse_gated_delta_rule_mode(const std::string& name);

struct GatedDeltaRuleSize {
  int64_t batch = 0, sequences = 0, length = 0, heads = 1, value_heads = 1, K = 0, V = 0;
  DType dtype = DType::kFloat32;
  GatedDeltaRuleMode mode = GatedDeltaRuleMode::kAuto;
  bool kept_states = false;  // the problem has room for them (gated_delta_rule.h)

  bool operator==(const GatedDeltaRuleSize&) const = default;
};

struct GatedDeltaRulePlan {
  static constexpr const char* kOperator = "gated_delta_rule";

  Pass pass = Pass::kForward;
  GatedDeltaRuleMode mode = GatedDeltaRuleMode::kChunk;  // never kAuto

  int64_t chunk = 0;         // tokens worked on at once
  int64_t column_parts = 0;  // parts of V with tasks of their own
  int64_t part_columns = 0;  // columns of the state that one task carries
  // Backward: gradients of q and k that are added up, one for each value head of a head and part.
  int64_t head_sums = 0;
  int64_t tasks = 0;          // independent pieces of work; fixes the order of every sum
  int64_t slots = 0;          // tasks in flight at once, each with scratch memory
  int64_t scratch_bytes = 0;  // of one slot
  int64_t workspace_bytes = 0;

  // What the problem costs at least, for judging a measured time.
  int64_t bytes = 0;            // every input read once, every output written once
  int64_t exponentials = 0;     // those of the gate and of beta's sigmoid are not counted
  int64_t multiplications = 0;  // multiply-adds of the products with states

  bool operator==(const GatedDeltaRulePlan&) const = default;
};

// `threads`: how many tasks the caller can run at once. Decides memory, never results.
GatedDeltaRulePlan plan(const GatedDeltaRuleSize& size, Pass pass, int64_t threads);

std::string to_string(const GatedDeltaRulePlan& plan);

}  // namespace linescan
