// How the CPU kernels cut a problem into tasks, and what memory they want: what plan.cpp and the
// kernels have to agree on. Nothing here depends on the instruction set or on the number of threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "linescan/base/math.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"
#include "linescan/ops/scan_tiling.h"

namespace linescan {

// Tokens worked on at once. Longer chunks cost more products among their own tokens, shorter ones
// more passes over the state and, in the backward pass, more states at borders. Measured in decision
// record 0014.
inline constexpr int64_t kForwardChunk = 16, kBackwardChunk = 32;
constexpr int64_t gated_delta_rule_chunk(Pass pass) {
  return pass == Pass::kForward ? kForwardChunk : kBackwardChunk;
}

// Columns of the state are given to tasks in blocks of this many.
inline constexpr int64_t kColumnBlock = 64;

// Rows of every array in scratch are padded to whole AVX-512 registers.
inline constexpr int64_t kRowAlignment = 16;
constexpr int64_t padded(int64_t size) { return round_up(size, kRowAlignment); }

// For a chunk of a single token with the largest K, in float64: 19 K numbers and some vectors.
inline constexpr int64_t kStepScratchBytes = 96 * 1024;

struct ScratchSize {
  int64_t chunk, K, columns, length;
};

// What a task takes from its slot's scratch at most; `element`: bytes of an accumulator.
inline int64_t scratch_bytes(const ScratchSize& s, Pass pass, int64_t element) {
  const int64_t K = padded(s.K), V = padded(s.columns), C = padded(s.chunk);
  constexpr int64_t kVectors = 20;  // arrays of one number a token
  int64_t elements = 3 * C * K + 2 * C * V + 5 * C * C + K * V + K + kVectors * C;
  if (pass == Pass::kBackward) {
    const int64_t chunks = ceil_div(s.length, s.chunk);
    elements += chunks * K * V + chunks * C * V;                // states at borders, u
    elements += 3 * K * V + 2 * C * K + 4 * C * V + 2 * C * C;  // gradients and transposes
  }
  constexpr int64_t kArrays = 64;  // each aligned
  return round_up(elements * element + kArrays * kScratchAlignment, kScratchAlignment);
}

// What the clamped bounds of packed sequences take behind the slots' scratch.
inline int64_t bounds_bytes(const GatedDeltaRuleSize& size) {
  return round_up((size.sequences + 1) * static_cast<int64_t>(sizeof(int64_t)), kScratchAlignment);
}

// Elements of the sums that several tasks of the backward pass contribute to.
inline int64_t partial_sums(const GatedDeltaRuleSize& size, int64_t head_sums, int64_t column_parts,
                            int64_t tasks) {
  const int64_t tokens = size.batch * size.length;
  const int64_t q_and_k = head_sums > 1 ? 2 * head_sums * tokens * size.heads * padded(size.K) : 0;
  const int64_t g_and_beta = column_parts > 1 ? 2 * column_parts * tokens * size.value_heads : 0;
  return q_and_k + g_and_beta + 2 * tasks;
}

// One task: a sequence, a value head and some of the state's columns, through all tokens in order.
struct GatedDeltaRuleTask {
  int64_t sequence, value_head, head, part;
  int64_t column, columns;    // of the state
  int64_t batch, begin, end;  // the sequence's tokens
  // Tokens that belong to no sequence lie before the first one and behind the last: these many rows
  // from `idle_front` = 0 on, and from `end` on, are this task's to fill with zeros.
  int64_t idle_front, idle_back;
  bool stands_in;  // there is no sequence: all tokens are idle
};

// Packed sequences as the kernels see them: bounds clamped into [0, length] and never falling, written
// behind the slots' scratch. Null if sequences are not packed.
inline const int64_t* bounds_of(const GatedDeltaRuleProblem& p, const GatedDeltaRuleSize& size,
                                const GatedDeltaRulePlan& plan, std::byte* workspace) {
  if (!p.packed) return nullptr;
  auto* clamped = reinterpret_cast<int64_t*>(workspace + plan.slots * plan.scratch_bytes);
  int64_t last = 0;
  for (int64_t i = 0; i <= size.sequences; ++i)
    clamped[i] = last = std::clamp<int64_t>(p.bounds[i], last, size.length);
  return clamped;
}

// `bounds`: clamped; null if sequences are not packed.
inline GatedDeltaRuleTask task_at(const GatedDeltaRuleSize& size, const GatedDeltaRulePlan& plan,
                                  const int64_t* bounds, int64_t index) {
  GatedDeltaRuleTask task{};
  task.part = index % plan.column_parts;
  const int64_t row = index / plan.column_parts;
  task.value_head = row % size.value_heads;
  task.head = task.value_head / (size.value_heads / size.heads);
  task.sequence = row / size.value_heads;
  task.column = task.part * plan.part_columns;
  task.columns = std::min(plan.part_columns, size.V - task.column);
  if (bounds == nullptr) {
    task.batch = task.sequence;
    task.end = size.length;
  } else if (size.sequences == 0) {
    task.idle_back = size.length;
    task.stands_in = true;
  } else {
    task.begin = bounds[task.sequence];
    task.end = bounds[task.sequence + 1];
    if (task.sequence == 0) task.idle_front = task.begin;
    if (task.sequence == size.sequences - 1) task.idle_back = size.length - task.end;
  }
  return task;
}

}  // namespace linescan
