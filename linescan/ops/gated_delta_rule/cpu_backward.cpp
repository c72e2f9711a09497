// gated_delta_rule backward on the CPU, chunk by chunk; letters and derivation: README.md.
//
//   A task carries some columns of one (sequence, value head)'s state. A first walk, forward, keeps the
//   state at every chunk's start and u of every token; a second one, from the last chunk to the first,
//   carries the state's gradient. No inverse is formed: u is a triangular solve, its adjoint the
//   transposed one.
//
// Numerics:  as in cpu_forward.cpp. Gradients that several tasks contribute to (q and k of a group of
//            value heads; everything but v where V is cut up; A_log and dt_bias) are kept apart and
//            added up in order at the end.
// Reference: reference.cpp; the bound in sample.h.
// Chosen by: the only CPU variant.

#include <cstring>
#include <utility>

#include "linescan/device/simd_targets.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "linescan/ops/gated_delta_rule/cpu_backward.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h: compiled once a target.
#include <hwy/highway.h>

#include "linescan/ops/gated_delta_rule/cpu_chunk.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {

// Sums that several tasks contribute to, each to a part of its own, added up by Finish. Where one task
// alone has a gradient, its tensor takes the part's place.
struct Sums {
  TensorView q, k;        // [parts, tokens, heads, K], K padded
  TensorView g, beta;     // [parts, tokens, value_heads]
  void *A_log, *dt_bias;  // [tasks]
  int64_t head_parts, column_parts;

  template <typename T>
  static Sums At(const GatedDeltaRuleSize& size, const GatedDeltaRulePlan& plan,
                 std::byte* workspace) {
    const int64_t in_front = plan.slots * plan.scratch_bytes + bounds_bytes(size);
    Arena arena(workspace + in_front, plan.workspace_bytes - in_front);
    Sums sums{};
    sums.head_parts = plan.head_sums;
    sums.column_parts = plan.column_parts;
    const DType type = accumulator_of(size.dtype);
    if (plan.head_sums > 1)
      for (TensorView* view : {&sums.q, &sums.k}) {
        const Shape shape{plan.head_sums * size.batch, size.length, size.heads, padded(size.K)};
        *view = contiguous_view(arena.take<T>(shape.elements()), type, shape);
      }
    if (plan.column_parts > 1)
      for (TensorView* view : {&sums.g, &sums.beta}) {
        const Shape shape{plan.column_parts * size.batch, size.length, size.value_heads};
        *view = contiguous_view(arena.take<T>(shape.elements()), type, shape);
      }
    sums.A_log = arena.take<T>(plan.tasks);
    sums.dt_bias = arena.take<T>(plan.tasks);
    return sums;
  }
};

// The view of part `part` of a sum, or the gradient itself where nothing is added up.
HWY_INLINE TensorView PartOf(const TensorView& sums, const TensorView& gradient, int64_t part,
                             int64_t batch) {
  if (!gradient || !sums) return gradient;
  TensorView view = sums;
  view.data = static_cast<char*>(view.data) +
              part * batch * sums.strides[0] * static_cast<int64_t>(size_of(sums.dtype));
  return view;
}

// Where a task's gradients go.
struct Targets {
  TensorView q, k, g, beta;
};

template <typename T>
struct Walk {
  const GatedDeltaRuleProblem& p;
  const GatedDeltaRuleGradients& gradients;
  Chunk<T> chunk;
  const Task task;
  Targets to;
  int64_t K_row, V_row, C_row;
  const int64_t lanes = LanesOf<T>();

  T* states;         // [chunks, K, columns]: entering every chunk
  T* updates;        // [length, columns]: u
  T* carry;          // [K, columns]: gradient of the state that leaves the chunk
  T* state_columns;  // [columns, K], and the same of carry
  T* carry_columns;
  T* u_columns;  // [columns, tokens]
  T *v, *go, *gx,
      *values;  // [tokens, columns]; gx: gradient of u, then of what the solve was given
  T *gq, *gk;   // [tokens, K]
  T *read_slope, *mixed_slope;                                      // [tokens, tokens]
  T *start_terms, *end_terms, *ggate, *gbeta, *minus_beta, *below;  // [tokens]
  T sum_A_log = 0, sum_dt_bias = 0;

  Walk(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
       const GatedDeltaRulePlan& plan, const Task& task, const Targets& to, Arena& arena)
      : p(p), gradients(gradients), chunk(p, plan, task, arena), task(task), to(to) {
    K_row = chunk.K_row;
    V_row = chunk.V_row;
    C_row = chunk.C_row;
    const int64_t C = chunk.C, length = task.end - task.begin;
    states = arena.take<T>(ceil_div(length, C) * chunk.K * V_row);
    updates = arena.take<T>(round_up(length, C) * V_row);
    for (T** array : {&carry, &state_columns, &carry_columns})
      *array = arena.take<T>(K_row * V_row);
    u_columns = arena.take<T>(V_row * C_row);
    for (T** array : {&v, &go, &gx, &values}) *array = arena.take<T>(C * V_row);
    for (T** array : {&gq, &gk}) *array = arena.take<T>(C * K_row);
    for (T** array : {&read_slope, &mixed_slope}) *array = arena.take<T>(C_row * C_row);
    for (T** array : {&start_terms, &end_terms, &ggate, &gbeta, &minus_beta, &below})
      *array = arena.take<T>(C_row);
  }

  void Run() {
    const int64_t length = task.end - task.begin, C = chunk.C;
    const int64_t chunks = ceil_div(length, C);
    if (chunks > 0) chunk.LoadState(p.initial_state, states);
    for (int64_t i = 0; i < chunks; ++i) {
      const int64_t first = i * C, tokens = HWY_MIN(C, length - first);
      const T* state = states + i * chunk.K * V_row;
      T* u = updates + first * V_row;
      chunk.Load(first, tokens, /*with_q=*/false);
      chunk.LoadValues(p.v, first, tokens, u);
      chunk.Relate(tokens, /*with_q=*/false);
      chunk.Update(tokens, state, chunk.StateDepth(first), u);
      if (i + 1 == chunks) break;
      T* next = states + (i + 1) * chunk.K * V_row;
      std::memcpy(next, state, chunk.K * V_row * sizeof(T));
      chunk.Advance(tokens, u, values, next);
    }
    chunk.LoadState(gradients.final_state, carry);
    for (int64_t i = chunks - 1; i >= 0; --i)
      RunChunk(i * C, HWY_MIN(C, length - i * C), states + i * chunk.K * V_row,
               updates + i * C * V_row);
    if (gradients.initial_state) chunk.StoreState(carry, gradients.initial_state);
  }

  void RunChunk(int64_t first, int64_t tokens, const T* state, const T* u) {
    chunk.Load(first, tokens, /*with_q=*/true);
    chunk.Relate(tokens, /*with_q=*/true);
    chunk.LoadValues(p.v, first, tokens, v);
    chunk.LoadValues(gradients.o, first, tokens, go);
    GradientOfUpdate(tokens, u);
    GradientOfPairs(tokens, u);
    const T through_state = Dot(carry, state, chunk.K * V_row) * chunk.total[0];
    GradientOfRows(tokens, state, u);
    GradientOfGates(tokens, through_state);
    StoreRows(first, tokens);
    CarryBack(tokens);
  }

  // gx = (I + mixed)^-T (read^T go + to_end o (k carry)), and end_terms = rowsum(u o to_end o (k carry)).
  void GradientOfUpdate(int64_t tokens, const T* u) {
    Product<T> product{.rows = tokens,
                       .columns = V_row,
                       .depth = chunk.K,
                       .a = chunk.k,
                       .a_row = K_row,
                       .a_step = 1,
                       .b = carry,
                       .b_row = V_row,
                       .c = gx,
                       .c_row = V_row,
                       .times = chunk.to_end};
    Multiply(product);
    for (int64_t i = 0; i < tokens; ++i) end_terms[i] = Dot(u + i * V_row, gx + i * V_row, V_row);
    product.depth = tokens;
    product.a = chunk.read;
    product.a_row = 1;
    product.a_step = C_row;
    product.b = go;
    product.keep = chunk.ones;
    product.times = nullptr;
    product.part = Part::kUpperLeft;
    Multiply(product);
    SolveUnitLower<true>(chunk.mixed, C_row, gx, V_row, tokens, V_row);
  }

  // What two tokens of the chunk do to each other, through read and mixed: read_slope = gradient of q_i
  // k_j, mixed_slope = gradient of k_i k_j; ggate gets their terms, gbeta those of mixed.
  void GradientOfPairs(int64_t tokens, const T* u) {
    Transpose(u, V_row, tokens, chunk.columns, u_columns, C_row, chunk.width);
    const auto against_u = [&](const T* rows, T* result) HWY_ATTR {
      Multiply<T>({.rows = tokens,
                   .columns = chunk.width,
                   .depth = chunk.columns,
                   .a = rows,
                   .a_row = V_row,
                   .a_step = 1,
                   .b = u_columns,
                   .b_row = C_row,
                   .c = result,
                   .c_row = C_row,
                   .part = Part::kLowerResult});
    };
    against_u(go, read_slope);
    against_u(gx, mixed_slope);
    const hn::ScalableTag<T> d;
    Fill(below, C_row, T(0));  // of every j, the terms of its pairs with i and all tokens behind i
    for (int64_t i = tokens - 1; i >= 0; --i) {
      const auto position = hn::Set(d, static_cast<T>(i));
      auto beta_terms = hn::Zero(d), gate_terms = hn::Zero(d);
      for (int64_t j = 0; j < C_row; j += lanes) {
        const int64_t at = i * C_row + j;
        const auto other = hn::Iota(d, static_cast<T>(j));
        const auto before = hn::Lt(other, position), until = hn::Le(other, position);
        const auto decay = hn::Load(d, chunk.decay + at), beta = hn::Set(d, chunk.beta[i]);
        const auto scaled = hn::Mul(hn::Set(d, chunk.scale), decay);
        const auto read = hn::IfThenElseZero(until, hn::Mul(scaled, hn::Load(d, read_slope + at)));
        const auto plain =
            hn::Neg(hn::IfThenElseZero(before, hn::Mul(decay, hn::Load(d, mixed_slope + at))));
        const auto terms = hn::IfThenElseZero(before, hn::Mul(plain, hn::Load(d, chunk.kk + at)));
        beta_terms = hn::Add(beta_terms, terms);
        auto pair = hn::Mul(beta, terms);
        pair = hn::Add(pair, hn::IfThenElseZero(before, hn::Mul(read, hn::Load(d, chunk.qk + at))));
        hn::Store(read, d, read_slope + at);
        hn::Store(hn::Mul(beta, plain), d, mixed_slope + at);
        const auto sum = hn::Add(hn::Load(d, below + j), pair);
        hn::Store(sum, d, below + j);
        gate_terms = hn::Add(gate_terms, hn::IfThenElseZero(before, sum));
      }
      gbeta[i] = hn::GetLane(hn::SumOfLanes(d, beta_terms));
      ggate[i] = hn::GetLane(hn::SumOfLanes(d, gate_terms));
    }
  }

  // gq and gk, before the norm; what passes through the states on the way adds to gbeta, and
  // start_terms gets what the decay from the chunk's start is multiplied by.
  void GradientOfRows(int64_t tokens, const T* state, const T* u) {
    Transpose(state, V_row, chunk.K, chunk.columns, state_columns, K_row, K_row);
    Transpose(carry, V_row, chunk.K, chunk.columns, carry_columns, K_row, K_row);
    Product<T> product{.rows = tokens,
                       .columns = K_row,
                       .depth = chunk.columns,
                       .a = go,
                       .a_row = V_row,
                       .a_step = 1,
                       .b = state_columns,
                       .b_row = K_row,
                       .c = gq,
                       .c_row = K_row,
                       .times = chunk.scaled_start};
    Multiply(product);
    product.a = gx;
    product.c = gk;
    product.times = chunk.from_start;
    Multiply(product);
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t row = i * K_row;
      const T read = Dot(chunk.q + row, gq + row, K_row);
      const T erased = Dot(chunk.k + row, gk + row, K_row);
      start_terms[i] = read - chunk.beta[i] * erased;
      gbeta[i] += Dot(gx + i * V_row, v + i * V_row, V_row) - erased;
      minus_beta[i] = -chunk.beta[i];
    }
    product.a = u;
    product.b = carry_columns;
    product.keep = minus_beta;
    product.times = chunk.to_end;
    Multiply(product);

    const auto among_tokens = [&](const T* left, bool transposed, const T* rows,
                                  T* result) HWY_ATTR {
      Multiply<T>({.rows = tokens,
                   .columns = K_row,
                   .depth = tokens,
                   .a = left,
                   .a_row = transposed ? 1 : C_row,
                   .a_step = transposed ? C_row : 1,
                   .b = rows,
                   .b_row = K_row,
                   .c = result,
                   .c_row = K_row,
                   .keep = chunk.ones,
                   .part = transposed ? Part::kUpperLeft : Part::kLowerLeft});
    };
    among_tokens(read_slope, false, chunk.k, gq);
    among_tokens(read_slope, true, chunk.q, gk);
    among_tokens(mixed_slope, false, chunk.k, gk);
    among_tokens(mixed_slope, true, chunk.k, gk);
  }

  // ggate: the gate of token m scales everything that passes from before it to it or behind it.
  void GradientOfGates(int64_t tokens, T through_state) {
    T ended = 0;
    for (int64_t i = 0; i < tokens; ++i) {  // u of the tokens before, on its way out of the chunk
      ggate[i] += ended + through_state;
      ended += end_terms[i];
    }
    T started = 0;
    for (int64_t i = tokens - 1; i >= 0; --i) ggate[i] += started += start_terms[i];
    if (p.inputs.A_log) {
      const hn::ScalableTag<T> d;
      for (int64_t i = tokens; i < chunk.width; ++i) ggate[i] = 0;
      for (int64_t i = 0; i < tokens; ++i) sum_A_log += ggate[i] * chunk.g[i];
      for (int64_t i = 0; i < chunk.width; i += lanes) {
        const auto slope = SoftplusSlope(d, hn::Load(d, chunk.raw_g + i));
        const auto factor = hn::Mul(hn::Set(d, -chunk.gate_rate), slope);
        hn::Store(hn::Mul(hn::Load(d, ggate + i), factor), d, ggate + i);
      }
      for (int64_t i = 0; i < tokens; ++i) sum_dt_bias += ggate[i];
    }
    if (p.inputs.beta_sigmoid)
      for (int64_t i = 0; i < tokens; ++i)
        gbeta[i] *= chunk.beta[i] * (1 - chunk.beta[i] / chunk.largest_beta);
  }

  void StoreRows(int64_t first, int64_t tokens) {
    if (p.inputs.qk_l2norm) {
      ThroughNorm(tokens, chunk.q, chunk.q_norm, gq);
      ThroughNorm(tokens, chunk.k, chunk.k_norm, gk);
    }
    const auto rows = [&](const T* from, const TensorView& tensor) HWY_ATTR {
      if (tensor)
        StoreTile(from, K_row, tokens, chunk.K,
                  RowsWindow(tensor, task, p.reverse, first, task.head, 0));
    };
    rows(gq, to.q);
    rows(gk, to.k);
    const auto numbers = [&](const T* from, const TensorView& tensor) HWY_ATTR {
      if (tensor) StoreTile(from, C_row, 1, tokens, NumbersWindow(tensor, task, p.reverse, first));
    };
    numbers(ggate, to.g);
    numbers(gbeta, to.beta);
    if (!gradients.v) return;
    for (int64_t i = 0; i < tokens; ++i) Scale(gx + i * V_row, V_row, chunk.beta[i], v + i * V_row);
    chunk.StoreValues(v, first, tokens, gradients.v);
  }

  // carry <- total carry + (scaled_start o q)^T go - (from_start beta o k)^T gx
  void CarryBack(int64_t tokens) {
    for (int64_t i = 0; i < tokens; ++i)
      Scale(go + i * V_row, V_row, chunk.scaled_start[i], values + i * V_row);
    chunk.AddOuter(tokens, chunk.q, chunk.total, values, carry);
    for (int64_t i = 0; i < tokens; ++i)
      Scale(gx + i * V_row, V_row, chunk.minus_start[i], values + i * V_row);
    Fill(state_columns, K_row, T(1));
    chunk.AddOuter(tokens, chunk.k, state_columns, values, carry);
  }

  // Of x / sqrt(sum x^2 + epsilon) = y: norm (gy - y (y gy)).
  void ThroughNorm(int64_t tokens, const T* rows, const T* norm, T* gradient) const {
    const hn::ScalableTag<T> d;
    for (int64_t i = 0; i < tokens; ++i) {
      const T* y = rows + i * K_row;
      T* g = gradient + i * K_row;
      const auto along = hn::Set(d, Dot(y, g, K_row)), factor = hn::Set(d, norm[i]);
      for (int64_t x = 0; x < K_row; x += lanes)
        hn::Store(hn::Mul(factor, hn::NegMulAdd(hn::Load(d, y + x), along, hn::Load(d, g + x))), d,
                  g + x);
    }
  }

  void StoreIdle() const {
    ForIdleTokens(task, [&](const Task& idle) {
      const int64_t tokens = idle.end - idle.begin;
      for (const TensorView* tensor : {&to.q, &to.k})
        if (*tensor)
          StoreZeros<T>(RowsWindow(*tensor, idle, false, 0, task.head, 0), tokens, chunk.K);
      if (gradients.v)
        StoreZeros<T>(RowsWindow(gradients.v, idle, false, 0, task.value_head, task.column), tokens,
                      task.columns);
      for (const TensorView* tensor : {&to.g, &to.beta}) {
        if (!*tensor) continue;
        Window window = NumbersWindow(*tensor, idle, false, 0);
        std::swap(window.step_stride, window.channel_stride);  // a token a row
        StoreZeros<T>(window, tokens, 1);
      }
    });
  }
};

template <typename T>
void BackwardTask(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
                  const GatedDeltaRuleSize& size, const GatedDeltaRulePlan& plan,
                  const int64_t* bounds, std::byte* workspace, int64_t slot, int64_t index) {
  const Task task = task_at(size, plan, bounds, index);
  const Sums sums = Sums::At<T>(size, plan, workspace);
  const int64_t group = size.value_heads / size.heads;
  const int64_t head_part = task.value_head % group * plan.column_parts + task.part;
  const Targets to{.q = PartOf(sums.q, gradients.q, head_part, size.batch),
                   .k = PartOf(sums.k, gradients.k, head_part, size.batch),
                   .g = PartOf(sums.g, gradients.g, task.part, size.batch),
                   .beta = PartOf(sums.beta, gradients.beta, task.part, size.batch)};
  Arena arena(workspace + slot * plan.scratch_bytes, plan.scratch_bytes);
  Walk<T> walk(p, gradients, plan, task, to, arena);
  walk.StoreIdle();
  if (!task.stands_in) walk.Run();
  static_cast<T*>(sums.A_log)[index] = walk.sum_A_log;
  static_cast<T*>(sums.dt_bias)[index] = walk.sum_dt_bias;
}

void Backward(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
              const GatedDeltaRuleSize& size, const GatedDeltaRulePlan& plan, const int64_t* bounds,
              std::byte* workspace, int64_t slot) {
  for (int64_t index = slot; index < plan.tasks; index += plan.slots)
    accumulator_of(size.dtype) == DType::kFloat64
        ? BackwardTask<double>(p, gradients, size, plan, bounds, workspace, slot, index)
        : BackwardTask<float>(p, gradients, size, plan, bounds, workspace, slot, index);
}

// ---- Adding up -----------------------------------------------------------------------------------

// One token's rows [heads, K] of a gradient, or its numbers [value_heads] (columns 0).
template <typename T>
HWY_INLINE void FinishToken(const TensorView& sums, const TensorView& gradient, int64_t parts,
                            int64_t batch, int64_t token, int64_t columns) {
  if (!sums || !gradient) return;
  const int64_t stride = batch * sums.strides[0], row = sums.strides[1];
  T* first = sums.as<T>() + token * row;
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t i = 0; i < row; ++i) first[i] += first[part * stride + i];
  const Shape& s = gradient.strides;
  const int64_t length = gradient.shape[1];
  const int64_t offset = token / length * s[0] + token % length * s[1];
  if (columns > 0)
    StoreTile(first, sums.strides[2], gradient.shape[2], columns,
              WindowAt(gradient, offset, s[2], s[3]));
  else
    StoreTile(first, 1, gradient.shape[2], 1, WindowAt(gradient, offset, s[2], 0));
}

// A gradient [.., heads, K] that no value head contributes to.
template <typename T>
HWY_INLINE void FinishUnread(const TensorView& gradient, int64_t token) {
  if (!gradient) return;
  const Shape &s = gradient.strides, &size = gradient.shape;
  const int64_t offset = token / size[1] * s[0] + token % size[1] * s[1];
  StoreZeros<T>(WindowAt(gradient, offset, s[2], s[3]), size[2], size[3]);
}

template <typename T>
void FinishTokens(const GatedDeltaRuleGradients& gradients, const GatedDeltaRuleSize& size,
                  const GatedDeltaRulePlan& plan, std::byte* workspace, int64_t begin,
                  int64_t end) {
  const Sums sums = Sums::At<T>(size, plan, workspace);
  for (int64_t token = begin; token < end; ++token) {
    if (sums.head_parts == 0)
      for (const TensorView* gradient : {&gradients.q, &gradients.k})
        FinishUnread<T>(*gradient, token);
    FinishToken<T>(sums.q, gradients.q, sums.head_parts, size.batch, token, size.K);
    FinishToken<T>(sums.k, gradients.k, sums.head_parts, size.batch, token, size.K);
    FinishToken<T>(sums.g, gradients.g, sums.column_parts, size.batch, token, 0);
    FinishToken<T>(sums.beta, gradients.beta, sums.column_parts, size.batch, token, 0);
  }
}

template <typename T>
void FinishHeads(const GatedDeltaRuleGradients& gradients, const GatedDeltaRuleSize& size,
                 const GatedDeltaRulePlan& plan, std::byte* workspace) {
  const Sums sums = Sums::At<T>(size, plan, workspace);
  const auto add_up = [&](const void* terms, const TensorView& gradient) {
    if (!gradient) return;
    const int64_t rows = plan.tasks / plan.column_parts;
    for (int64_t head = 0; head < size.value_heads; ++head) {
      T sum = 0;
      for (int64_t row = head; row < rows; row += size.value_heads)
        for (int64_t part = 0; part < plan.column_parts; ++part)
          sum += static_cast<const T*>(terms)[row * plan.column_parts + part];
      gradient.as<T>()[head * gradient.strides[0]] = sum;
    }
  };
  add_up(sums.A_log, gradients.A_log);
  add_up(sums.dt_bias, gradients.dt_bias);
}

// The index behind the last token stands for A_log and dt_bias.
void Finish(const GatedDeltaRuleGradients& gradients, const GatedDeltaRuleSize& size,
            const GatedDeltaRulePlan& plan, std::byte* workspace, int64_t begin, int64_t end) {
  const int64_t tokens = size.batch * size.length;
  const auto finish = [&](auto zero) {
    using T = decltype(zero);
    FinishTokens<T>(gradients, size, plan, workspace, begin, HWY_MIN(end, tokens));
    if (end > tokens) FinishHeads<T>(gradients, size, plan, workspace);
  };
  accumulator_of(size.dtype) == DType::kFloat64 ? finish(double{}) : finish(float{});
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

HWY_EXPORT(Backward);
HWY_EXPORT(Finish);

}  // namespace

void backward(const GatedDeltaRuleProblem& p, const GatedDeltaRuleGradients& gradients,
              const GatedDeltaRulePlan& plan, std::byte* workspace,
              const ParallelFor& parallel_for) {
  ensure_simd_target();
  const GatedDeltaRuleSize size = size_of(p);
  const int64_t* bounds = bounds_of(p, size, plan, workspace);
  parallel_each(parallel_for, HWY_MIN(plan.slots, plan.tasks), [&](int64_t slot) {
    HWY_DYNAMIC_DISPATCH(Backward)(p, gradients, size, plan, bounds, workspace, slot);
  });
  parallel_for(size.batch * size.length + 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(Finish)(gradients, size, plan, workspace, begin, end);
  });
}

}  // namespace linescan
#endif  // HWY_ONCE
