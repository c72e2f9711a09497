// gated_delta_rule forward on the CPU.
//
//   S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - exp(g_t) S_{t-1}^T k_t)^T        o_t = scale S_t^T q_t
//
//   A task carries some columns of one (sequence, value head)'s state through all tokens. Chunk: plan.chunk
//   tokens at a time; what the tokens of a chunk do to each other is a triangular solve, everything
//   else products of small matrices (ops/small_product.h). Recurrent: token by token in two passes over
//   the state; one reads S^T k and S^T q, one writes.
//
// Numerics:  everything in float32 (float64 for float64 data). Sums are ordered by sizes alone, never
//            by threads.
// Reference: reference.cpp; the bound in sample.h.
// Chosen by: plan.cpp.

#include "linescan/device/simd_targets.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linescan/ops/gated_delta_rule/cpu_forward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h: compiled once a target.
#include <hwy/highway.h>

#include "linescan/ops/gated_delta_rule/cpu_chunk.h"
#include "linescan/ops/gated_delta_rule/cpu_token.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {

// o and the next state, from u's memory holding v; `depth`: rows of the state that count.
template <typename T>
HWY_INLINE void RunChunk(Chunk<T>& chunk, int64_t tokens, int64_t depth, T* state, T* u, T* o) {
  chunk.Relate(tokens, /*with_q=*/true);
  chunk.Update(tokens, state, depth, u);
  Product<T> product{.rows = tokens,
                     .columns = chunk.V_row,
                     .depth = depth,
                     .a = chunk.q,
                     .a_row = chunk.K_row,
                     .a_step = 1,
                     .b = state,
                     .b_row = chunk.V_row,
                     .c = o,
                     .c_row = chunk.V_row,
                     .times = chunk.scaled_start};
  Multiply(product);
  product.depth = tokens;
  product.a = chunk.read;
  product.a_row = chunk.C_row;
  product.b = u;
  product.keep = chunk.ones;
  product.times = nullptr;
  product.part = Part::kLowerLeft;
  Multiply(product);
  chunk.Advance(tokens, u, u, state);
}

template <typename T>
HWY_INLINE void RunTokens(const Chunk<T>& chunk, int64_t tokens, T* state, const T* v, T* o) {
  for (int64_t i = 0; i < tokens; ++i) {
    const T *q = chunk.q + i * chunk.K_row, *k = chunk.k + i * chunk.K_row;
    const Token<T> token{.K = chunk.K,
                         .q = q,
                         .k = k,
                         .gate = std::exp(chunk.g[i]),
                         .beta = chunk.beta[i],
                         .scale = chunk.scale,
                         .read = Dot(q, k, chunk.K_row)};
    const int64_t row = i * chunk.V_row;
    AdvanceColumns(token, chunk.V_row, state, chunk.V_row, v + row, o + row);
  }
}

template <typename T>
void ForwardTask(const GatedDeltaRuleProblem& p, const GatedDeltaRulePlan& plan, const Task& task,
                 std::byte* scratch) {
  Arena arena(scratch, plan.scratch_bytes);
  Chunk<T> chunk(p, plan, task, arena);
  T* state = arena.take<T>(chunk.K_row * chunk.V_row);
  T* u = arena.take<T>(chunk.C * chunk.V_row);
  T* o = arena.take<T>(chunk.C * chunk.V_row);
  ForIdleTokens(task, [&](const Task& idle) {
    StoreZeros<T>(RowsWindow(p.o, idle, false, 0, task.value_head, task.column),
                  idle.end - idle.begin, task.columns);
  });
  if (task.stands_in) return;

  chunk.LoadState(p.initial_state, state);
  const int64_t length = task.end - task.begin;
  for (int64_t first = 0; first < length; first += chunk.C) {
    const int64_t tokens = HWY_MIN(chunk.C, length - first);
    chunk.Load(first, tokens, /*with_q=*/true);
    chunk.LoadValues(p.v, first, tokens, u);
    if (plan.mode == GatedDeltaRuleMode::kRecurrent)
      RunTokens(chunk, tokens, state, u, o);
    else
      RunChunk(chunk, tokens, chunk.StateDepth(first), state, u, o);
    chunk.StoreValues(o, first, tokens, p.o);
  }
  if (p.final_state) chunk.StoreState(state, p.final_state);
}

void Forward(const GatedDeltaRuleProblem& p, const GatedDeltaRuleSize& size,
             const GatedDeltaRulePlan& plan, const int64_t* bounds, std::byte* workspace,
             int64_t slot) {
  std::byte* scratch = workspace + slot * plan.scratch_bytes;
  for (int64_t index = slot; index < plan.tasks; index += plan.slots) {
    const Task task = task_at(size, plan, bounds, index);
    accumulator_of(size.dtype) == DType::kFloat64 ? ForwardTask<double>(p, plan, task, scratch)
                                                  : ForwardTask<float>(p, plan, task, scratch);
  }
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

HWY_EXPORT(Forward);

}  // namespace

void forward(const GatedDeltaRuleProblem& p, const GatedDeltaRulePlan& plan, std::byte* workspace,
             const ParallelFor& parallel_for) {
  ensure_simd_target();
  const GatedDeltaRuleSize size = size_of(p);
  const int64_t* bounds = bounds_of(p, size, plan, workspace);
  parallel_each(parallel_for, HWY_MIN(plan.slots, plan.tasks), [&](int64_t slot) {
    HWY_DYNAMIC_DISPATCH(Forward)(p, size, plan, bounds, workspace, slot);
  });
}

}  // namespace linescan
#endif  // HWY_ONCE
