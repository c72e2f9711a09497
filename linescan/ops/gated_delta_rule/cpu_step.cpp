// gated_delta_rule_step on the CPU: one token for each of many sequences, states in place.
//
//   A task is one (token, value head): two passes over its state where it lies in the pool, vectors
//   along the state's last dimension (cpu_token.h).
//
// Numerics:  everything in float32 (float64 for float64 data).
// Reference: reference.cpp with length 1; the bound in sample.h.
// Chosen by: the only CPU variant.

#include "linescan/device/simd_targets.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linescan/ops/gated_delta_rule/cpu_step.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h: compiled once a target.
#include <hwy/highway.h>

#include "linescan/ops/gated_delta_rule/cpu_chunk.h"
#include "linescan/ops/gated_delta_rule/cpu_token.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {

// [tokens, heads, ...] as [1, tokens, heads, ...]: a token is a sequence of one token.
HWY_INLINE TensorView InOneBatch(const TensorView& tensor) {
  TensorView view = tensor;
  view.shape = view.strides = {1};
  for (int64_t size : tensor.shape) view.shape.push_back(size);
  for (int64_t stride : tensor.strides) view.strides.push_back(stride);
  return view;
}

template <typename T>
void StepTasks(const GatedDeltaRuleStepProblem& step, int64_t begin, int64_t end) {
  // A chunk of one token, whose inputs go through norm, gate and sigmoid as everyone's.
  GatedDeltaRuleProblem p;
  p.q = InOneBatch(step.q);
  p.k = InOneBatch(step.k);
  p.v = InOneBatch(step.v);
  p.g = InOneBatch(step.g);
  p.beta = InOneBatch(step.beta);
  p.o = InOneBatch(step.o);
  p.inputs = step.inputs;
  GatedDeltaRulePlan plan;
  plan.chunk = 1;
  HWY_ALIGN std::byte scratch[kStepScratchBytes];
  HWY_ALIGN T v[kGatedDeltaRuleLargestHead], o[kGatedDeltaRuleLargestHead];
  const int64_t value_heads = step.v.shape[1], V = step.v.shape[2];
  for (int64_t index = begin; index < end; ++index) {
    Task task{};
    task.begin = index / value_heads;
    task.end = task.begin + 1;
    task.value_head = index % value_heads;
    task.head = task.value_head / (value_heads / step.q.shape[1]);
    task.columns = V;
    const int64_t slot = step.slots[task.begin];
    if (slot < 0 || slot >= step.pool.shape[0]) {
      StoreZeros<T>(RowsWindow(p.o, task, false, 0, task.value_head, 0), 1, V);
      continue;
    }
    Arena arena(scratch, kStepScratchBytes);
    Chunk<T> chunk(p, plan, task, arena);
    chunk.Load(0, 1, /*with_q=*/true);
    chunk.LoadValues(p.v, 0, 1, v);
    const Token<T> token{.K = chunk.K,
                         .q = chunk.q,
                         .k = chunk.k,
                         .gate = std::exp(chunk.g[0]),
                         .beta = chunk.beta[0],
                         .scale = chunk.scale,
                         .read = Dot(chunk.q, chunk.k, chunk.K_row)};
    const Shape& s = step.pool.strides;
    T* state = step.pool.as<T>() + slot * s[0] + task.value_head * s[1];
    if (step.inputs.state_v_first)
      AdvanceRows(token, V, state, v, o);
    else
      AdvanceColumns(token, V, state, V, v, o);
    chunk.StoreValues(o, 0, 1, p.o);
  }
}

void Step(const GatedDeltaRuleStepProblem& step, int64_t begin, int64_t end) {
  accumulator_of(step.q.dtype) == DType::kFloat64 ? StepTasks<double>(step, begin, end)
                                                  : StepTasks<float>(step, begin, end);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "linescan/device/simd_target.h"
#include "linescan/ops/parallel.h"

namespace linescan {
namespace {

HWY_EXPORT(Step);

}  // namespace

void step(const GatedDeltaRuleStepProblem& problem, const ParallelFor& parallel_for) {
  ensure_simd_target();
  const int64_t tasks = problem.v.shape[0] * problem.v.shape[1];
  parallel_for(tasks, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Step)(problem, begin, end);
  });
}

}  // namespace linescan
#endif  // HWY_ONCE
