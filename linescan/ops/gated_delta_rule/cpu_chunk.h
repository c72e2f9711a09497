// One chunk of tokens in scratch, and what the passes share about it: inputs brought in and put
// through norm, gate and sigmoid; decays between tokens; the two triangular matrices.
//
// Include inside a kernel file after foreach_target.h, like simd.h.

#if defined(LINESCAN_OPS_GATED_DELTA_RULE_CPU_CHUNK_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LINESCAN_OPS_GATED_DELTA_RULE_CPU_CHUNK_H_
#undef LINESCAN_OPS_GATED_DELTA_RULE_CPU_CHUNK_H_
#else
#define LINESCAN_OPS_GATED_DELTA_RULE_CPU_CHUNK_H_
#endif

#include <cmath>

#include "linescan/ops/gated_delta_rule/cpu_layout.h"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"
#include "linescan/ops/small_product.h"

HWY_BEFORE_NAMESPACE();
namespace linescan {
namespace HWY_NAMESPACE {
namespace {  // every kernel file has its own copy: the linker need not choose among instruction sets

using Task = GatedDeltaRuleTask;

inline constexpr double kNormEpsilon = 1e-6;

// ---- Where a task's rows lie in tensors ------------------------------------------------------------

// Row `first` of the task, in the order in which it walks its tokens.
HWY_INLINE int64_t TokenAt(const Task& task, bool reverse, int64_t first) {
  return reverse ? task.end - 1 - first : task.begin + first;
}

// [batch, length, heads, columns] as [tokens, columns].
HWY_INLINE Window RowsWindow(const TensorView& tensor, const Task& task, bool reverse,
                             int64_t first, int64_t head, int64_t column) {
  const Shape& s = tensor.strides;
  return WindowAt(
      tensor,
      task.batch * s[0] + TokenAt(task, reverse, first) * s[1] + head * s[2] + column * s[3],
      reverse ? -s[1] : s[1], s[3]);
}

// [batch, length, value_heads] as one row of numbers, a number a token.
HWY_INLINE Window NumbersWindow(const TensorView& tensor, const Task& task, bool reverse,
                                int64_t first) {
  const Shape& s = tensor.strides;
  return WindowAt(tensor,
                  task.batch * s[0] + TokenAt(task, reverse, first) * s[1] + task.value_head * s[2],
                  0, reverse ? -s[1] : s[1]);
}

// [sequences, value_heads, K, V] or [.., V, K] as [K, the task's columns].
HWY_INLINE Window StateWindow(const TensorView& tensor, const Task& task, bool v_first) {
  const Shape& s = tensor.strides;
  const int k = v_first ? 3 : 2, v = v_first ? 2 : 3;
  return WindowAt(tensor, task.sequence * s[0] + task.value_head * s[1] + task.column * s[v], s[k],
                  s[v]);
}

// Calls fill(task) with tokens of no sequence, in front and behind, as if they were the task's own.
template <class Function>
HWY_INLINE void ForIdleTokens(const Task& task, const Function& fill) {
  Task idle = task;
  if (task.idle_front > 0) {
    idle.begin = 0;
    idle.end = task.idle_front;
    fill(idle);
  }
  if (task.idle_back > 0) {
    idle.begin = task.end;
    idle.end = task.end + task.idle_back;
    fill(idle);
  }
}

// `tokens` rows of zeros.
template <typename T>
HWY_INLINE void StoreZeros(const Window& window, int64_t tokens, int64_t columns) {
  HWY_ALIGN T zeros[kGatedDeltaRuleLargestHead] = {};
  StoreTile(zeros, 0, tokens, columns, window);
}

// ---- Sums over rows ----------------------------------------------------------------------------

// sum_i a[i] b[i] over `width` numbers, a multiple of the vector length; rows are zero beyond their end.
template <typename T>
HWY_INLINE T Dot(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, int64_t width) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < width; i += LanesOf<T>())
    sum = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// ---- The chunk -----------------------------------------------------------------------------------

// Arrays over tokens have `tokens` valid rows, padded with zeros to the distance of rows.
template <typename T>
struct Chunk {
  const GatedDeltaRuleProblem& p;
  Task task;
  int64_t K, columns, C;         // sizes; C: tokens of a whole chunk
  int64_t K_row, V_row, C_row;   // K, columns, C, padded: the distances of rows
  int64_t width = 0;             // tokens, padded
  T gate_rate = 0, dt_bias = 0;  // of this value head; gate_rate = exp(A_log)
  T scale, largest_beta;         // largest_beta: what sigmoid is multiplied by

  T *q, *k;            // [tokens, K], normalised
  T* k_columns;        // [K, tokens]
  T *g, *beta;         // [tokens], through gate and sigmoid
  T* raw_g;            // [tokens]: what softplus was applied to
  T *q_norm, *k_norm;  // [tokens]: 1 / sqrt(sum x^2 + epsilon)
  T* from_start;       // [tokens]: decay from the chunk's start to behind the token
  T* to_end;           // [tokens]: decay from behind the token to the chunk's end
  T* decay;            // [tokens, tokens]: from behind j to behind i; zero for j > i
  T *qk, *kk;          // [tokens, tokens]: q_i k_j, k_i k_j for j <= i
  T* read;             // [tokens, tokens]: scale decay qk for j <= i, else zero
  T* mixed;            // [tokens, tokens]: beta_i decay kk for j < i, else zero
  T* scaled_start;     // [tokens]: scale from_start
  T* minus_start;      // [tokens]: -beta from_start
  T* total;            // [K]: decay of the whole chunk, in every element
  T* ones;             // [tokens]
  T* sums;             // [tokens]

  Chunk(const GatedDeltaRuleProblem& p, const GatedDeltaRulePlan& plan, const Task& task,
        Arena& arena)
      : p(p), task(task), K(p.q.shape[3]), columns(task.columns), C(plan.chunk) {
    K_row = padded(K);
    V_row = padded(columns);
    C_row = padded(C);
    scale = static_cast<T>(p.inputs.scale);
    largest_beta = p.inputs.allow_neg_eigval ? T(2) : T(1);
    if (p.inputs.A_log) {
      gate_rate = std::exp(p.inputs.A_log.as<T>()[task.value_head * p.inputs.A_log.strides[0]]);
      if (p.inputs.dt_bias)
        dt_bias = p.inputs.dt_bias.as<T>()[task.value_head * p.inputs.dt_bias.strides[0]];
    }
    q = arena.take<T>(C * K_row);
    k = arena.take<T>(C * K_row);
    k_columns = arena.take<T>(K_row * C_row);
    for (T** array : {&g, &beta, &raw_g, &q_norm, &k_norm, &from_start, &to_end, &scaled_start,
                      &minus_start, &ones, &sums})
      *array = arena.take<T>(C_row);
    total = arena.take<T>(K_row);
    for (T** array : {&decay, &qk, &kk, &read, &mixed}) *array = arena.take<T>(C_row * C_row);
    Fill(ones, C_row, T(1));
  }

  // Tokens first .. first + tokens - 1 in the task's order; q only if it is wanted.
  void Load(int64_t first, int64_t tokens, bool with_q) {
    width = padded(tokens);
    if (with_q) LoadRows(p.q, first, tokens, q, q_norm);
    LoadRows(p.k, first, tokens, k, k_norm);
    const hn::ScalableTag<T> d;
    LoadTile(NumbersWindow(p.g, task, p.reverse, first), 1, tokens, width, g, C_row);
    LoadTile(NumbersWindow(p.beta, task, p.reverse, first), 1, tokens, width, beta, C_row);
    for (int64_t i = 0; i < width; i += LanesOf<T>()) {
      if (p.inputs.A_log) {
        const auto raw = hn::Add(hn::Load(d, g + i), hn::Set(d, dt_bias));
        hn::Store(raw, d, raw_g + i);
        hn::Store(hn::Mul(hn::Set(d, -gate_rate), Softplus(d, raw)), d, g + i);
      }
      if (p.inputs.beta_sigmoid)
        hn::Store(hn::Mul(hn::Set(d, largest_beta), Sigmoid(d, hn::Load(d, beta + i))), d,
                  beta + i);
    }
  }

  // Rows of v or of a gradient of its shape; zeros for an absent one.
  void LoadValues(const TensorView& tensor, int64_t first, int64_t tokens, T* to) const {
    if (tensor)
      LoadTile(RowsWindow(tensor, task, p.reverse, first, task.value_head, task.column), tokens,
               columns, V_row, to, V_row);
    else
      for (int64_t i = 0; i < tokens; ++i) Fill(to + i * V_row, V_row, T(0));
  }
  void StoreValues(const T* from, int64_t first, int64_t tokens, const TensorView& tensor) const {
    StoreTile(from, V_row, tokens, columns,
              RowsWindow(tensor, task, p.reverse, first, task.value_head, task.column));
  }

  // How many rows of the state in front of row `first` are not known to be zero.
  int64_t StateDepth(int64_t first) const { return first == 0 && !p.initial_state ? 0 : K; }

  // A state, [K, columns] in scratch; zeros for an absent one.
  void LoadState(const TensorView& tensor, T* to) const {
    if (tensor)
      LoadTile(StateWindow(tensor, task, p.inputs.state_v_first), K, columns, V_row, to, V_row);
    else
      Fill(to, K * V_row, T(0));
  }
  void StoreState(const T* from, const TensorView& tensor) const {
    StoreTile(from, V_row, K, columns, StateWindow(tensor, task, p.inputs.state_v_first));
  }

  // Everything about the chunk that does not depend on states. kk and mixed; with_q: qk and read.
  void Relate(int64_t tokens, bool with_q) {
    Transpose(k, K_row, tokens, K, k_columns, C_row, width);
    const auto scores = [&](const T* rows, T* to) HWY_ATTR {
      Multiply<T>({.rows = tokens,
                   .columns = width,
                   .depth = K,
                   .a = rows,
                   .a_row = K_row,
                   .a_step = 1,
                   .b = k_columns,
                   .b_row = C_row,
                   .c = to,
                   .c_row = C_row,
                   .part = Part::kLowerResult});
    };
    scores(k, kk);
    if (with_q) scores(q, qk);

    const hn::ScalableTag<T> d;
    Fill(sums, C_row, T(0));
    T whole = 0;
    for (int64_t i = 0; i < tokens; ++i) {
      // Decays are exponentials of sums of g over just the tokens between, never of a difference of
      // longer sums: a strong gate further back would leave nothing of a weak one here.
      const auto gate = hn::Set(d, g[i]), position = hn::Set(d, static_cast<T>(i));
      const auto mix = hn::Set(d, beta[i]);
      for (int64_t j = 0; j < C_row; j += LanesOf<T>()) {
        const int64_t at = i * C_row + j;
        const auto other = hn::Iota(d, static_cast<T>(j));
        const auto before = hn::Lt(other, position), until = hn::Le(other, position);
        const auto sum = hn::Add(hn::Load(d, sums + j), hn::IfThenElseZero(before, gate));
        hn::Store(sum, d, sums + j);
        const auto factor = hn::IfThenElseZero(until, Exponential(d, sum));
        hn::Store(factor, d, decay + at);
        hn::Store(hn::IfThenElseZero(before, hn::Mul(hn::Mul(mix, factor), hn::Load(d, kk + at))),
                  d, mixed + at);
        if (with_q)
          hn::Store(hn::IfThenElseZero(
                        until, hn::Mul(hn::Mul(hn::Set(d, scale), factor), hn::Load(d, qk + at))),
                    d, read + at);
      }
      from_start[i] = whole += g[i];
    }
    for (int64_t i = tokens; i < width; ++i) from_start[i] = 0;
    for (int64_t i = 0; i < width; i += LanesOf<T>()) {
      const auto factor = Exponential(d, hn::Load(d, from_start + i));
      hn::Store(factor, d, from_start + i);
      hn::Store(hn::Mul(factor, hn::Set(d, scale)), d, scaled_start + i);
      hn::Store(hn::Neg(hn::Mul(factor, hn::Load(d, beta + i))), d, minus_start + i);
      hn::Store(hn::Load(d, decay + (tokens - 1) * C_row + i), d, to_end + i);
    }
    Fill(total, K_row, from_start[tokens - 1]);
  }

  // u: values come in, (I + mixed)^-1 (beta o (v - from_start o k S)) comes out. `depth`: rows of S
  // that count; 0 where S is known to be zero.
  void Update(int64_t tokens, const T* state, int64_t depth, T* u) const {
    Multiply<T>({.rows = tokens,
                 .columns = V_row,
                 .depth = depth,
                 .a = k,
                 .a_row = K_row,
                 .a_step = 1,
                 .b = state,
                 .b_row = V_row,
                 .c = u,
                 .c_row = V_row,
                 .keep = beta,
                 .times = minus_start});
    SolveUnitLower<false>(mixed, C_row, u, V_row, tokens, V_row);
  }

  // S <- total S + k^T (to_end o u). `scaled`: [tokens, columns], may be u itself.
  void Advance(int64_t tokens, const T* u, T* scaled, T* state) const {
    for (int64_t i = 0; i < tokens; ++i) Scale(u + i * V_row, V_row, to_end[i], scaled + i * V_row);
    AddOuter(tokens, k, total, scaled, state);
  }

  // S <- keep o S + rows^T values, rows [tokens, K], values [tokens, columns].
  void AddOuter(int64_t tokens, const T* rows, const T* keep, const T* values, T* state) const {
    Multiply<T>({.rows = K,
                 .columns = V_row,
                 .depth = tokens,
                 .a = rows,
                 .a_row = 1,
                 .a_step = K_row,
                 .b = values,
                 .b_row = V_row,
                 .c = state,
                 .c_row = V_row,
                 .keep = keep});
  }

 private:
  void LoadRows(const TensorView& tensor, int64_t first, int64_t tokens, T* to, T* norm) {
    LoadTile(RowsWindow(tensor, task, p.reverse, first, task.head, 0), tokens, K, K_row, to, K_row);
    if (!p.inputs.qk_l2norm) return;
    for (int64_t i = 0; i < tokens; ++i) {
      T* row = to + i * K_row;
      norm[i] = T(1) / std::sqrt(Dot(row, row, K_row) + static_cast<T>(kNormEpsilon));
      Scale(row, K_row, norm[i], row);
    }
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace linescan
HWY_AFTER_NAMESPACE();

#endif  // LINESCAN_OPS_GATED_DELTA_RULE_CPU_CHUNK_H_
