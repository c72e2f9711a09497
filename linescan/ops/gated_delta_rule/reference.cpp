// The definition of gated_delta_rule in plain loops over Tracked doubles: forward as the recurrence is
// written, backward as its adjoint, token by token (README.md). Slow, and meant to be read.

#include <algorithm>

#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"

namespace linescan {
namespace {

constexpr double kNormEpsilon = 1e-6;

Tracked power(Tracked x, double exponent) {
  const double value = std::pow(x.value, exponent);
  return smooth(value, exponent * value / x.value, x);
}

using Vector = std::vector<Tracked>;

Tracked dot(const Vector& a, const Vector& b) {
  Tracked sum;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// One (sequence, value head): its inputs as functions of the token's place in the walk.
struct Row {
  const GatedDeltaRuleProblem& p;
  GatedDeltaRuleSize size;
  int64_t sequence, value_head, head, batch, begin, end;

  Row(const GatedDeltaRuleProblem& p, int64_t sequence, int64_t value_head)
      : p(p), size(size_of(p)), sequence(sequence), value_head(value_head) {
    head = value_head / (size.value_heads / size.heads);
    batch = p.packed ? 0 : sequence;
    begin = 0;
    end = size.length;
    if (!p.packed) return;
    int64_t last = 0;
    for (int64_t i = 0; i <= sequence + 1; ++i) {
      last = std::clamp(p.bounds[i], last, size.length);
      (i <= sequence ? begin : end) = last;
    }
  }

  int64_t length() const { return end - begin; }
  int64_t token(int64_t t) const { return p.reverse ? end - 1 - t : begin + t; }

  Vector raw(const TensorView& tensor, int64_t t, int64_t which, int64_t count) const {
    Vector row(count);
    for (int64_t i = 0; i < count; ++i) row[i] = read_element(tensor, batch, token(t), which, i);
    return row;
  }
  // 1 / sqrt(sum x^2 + epsilon), or 1.
  Tracked norm(const Vector& x) const {
    return p.inputs.qk_l2norm ? power(dot(x, x) + Tracked(kNormEpsilon), -0.5) : Tracked(1.0);
  }
  Vector normalised(const TensorView& tensor, int64_t t) const {
    Vector row = raw(tensor, t, head, size.K);
    const Tracked factor = norm(row);
    for (Tracked& x : row) x = x * factor;
    return row;
  }
  Vector q(int64_t t) const { return normalised(p.q, t); }
  Vector k(int64_t t) const { return normalised(p.k, t); }
  Vector v(int64_t t) const { return raw(p.v, t, value_head, size.V); }

  Tracked rate() const { return exp(Tracked(read_element(p.inputs.A_log, value_head))); }
  Tracked raw_g(int64_t t) const {
    Tracked g = read_element(p.g, batch, token(t), value_head);
    if (p.inputs.dt_bias) g += Tracked(read_element(p.inputs.dt_bias, value_head));
    return g;
  }
  Tracked g(int64_t t) const { return p.inputs.A_log ? -(rate() * softplus(raw_g(t))) : raw_g(t); }
  Tracked raw_beta(int64_t t) const { return read_element(p.beta, batch, token(t), value_head); }
  double largest_beta() const { return p.inputs.allow_neg_eigval ? 2 : 1; }
  Tracked beta(int64_t t) const {
    return p.inputs.beta_sigmoid ? Tracked(largest_beta()) * sigmoid(raw_beta(t)) : raw_beta(t);
  }

  // Row-major indices of results.
  int64_t number_index(int64_t t) const {
    return (batch * size.length + token(t)) * size.value_heads + value_head;
  }
  int64_t key_index(int64_t t) const {
    return ((batch * size.length + token(t)) * size.heads + head) * size.K;
  }
  int64_t state_index(int64_t i, int64_t j) const {
    const int64_t first = (sequence * size.value_heads + value_head) * size.K * size.V;
    return first + (p.inputs.state_v_first ? j * size.K + i : i * size.V + j);
  }
  Tracked state_element(const TensorView& state, int64_t i, int64_t j) const {
    if (!state) return 0.0;
    return p.inputs.state_v_first ? read_element(state, sequence, value_head, j, i)
                                  : read_element(state, sequence, value_head, i, j);
  }
};

// S [K, V], row-major.
struct State {
  int64_t K, V;
  Vector at;

  State(const Row& row, const TensorView& from) : K(row.size.K), V(row.size.V), at(K * V) {
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < V; ++j) (*this)(i, j) = row.state_element(from, i, j);
  }
  Tracked& operator()(int64_t i, int64_t j) { return at[i * V + j]; }
  const Tracked& operator()(int64_t i, int64_t j) const { return at[i * V + j]; }

  Vector transposed_times(const Vector& k) const {
    Vector result(V);
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < V; ++j) result[j] += (*this)(i, j) * k[i];
    return result;
  }
  Vector times(const Vector& v) const {
    Vector result(K);
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < V; ++j) result[i] += (*this)(i, j) * v[j];
    return result;
  }
  void scale(Tracked factor) {
    for (Tracked& x : at) x = factor * x;
  }
  void add_outer(const Vector& k, const Vector& v) {
    for (int64_t i = 0; i < K; ++i)
      for (int64_t j = 0; j < V; ++j) (*this)(i, j) += k[i] * v[j];
  }
};

Vector scaled(Tracked factor, Vector row) {
  for (Tracked& x : row) x = factor * x;
  return row;
}

// v - S^T k
Vector error_of(const State& state, const Vector& k, Vector v) {
  const Vector predicted = state.transposed_times(k);
  for (std::size_t j = 0; j < v.size(); ++j) v[j] = v[j] - predicted[j];
  return v;
}

// Advances the state by token t.
void advance(const Row& row, int64_t t, State& state) {
  state.scale(exp(row.g(t)));
  const Vector k = row.k(t);
  state.add_outer(k, scaled(row.beta(t), error_of(state, k, row.v(t))));
}

template <class Visit>
void for_each_row(const GatedDeltaRuleProblem& problem, const Visit& visit) {
  const GatedDeltaRuleSize size = size_of(problem);
  for (int64_t sequence = 0; sequence < size.sequences; ++sequence)
    for (int64_t head = 0; head < size.value_heads; ++head) visit(Row(problem, sequence, head));
}

Shape state_shape(const GatedDeltaRuleProblem& p) {
  const GatedDeltaRuleSize size = size_of(p);
  const bool v_first = p.inputs.state_v_first;
  return {size.sequences, size.value_heads, v_first ? size.V : size.K, v_first ? size.K : size.V};
}

void add_state(const Row& row, const State& state, Judged& result) {
  for (int64_t i = 0; i < state.K; ++i)
    for (int64_t j = 0; j < state.V; ++j) add(result, row.state_index(i, j), state(i, j));
}

// The gradient of x from that of y = norm x: norm (gy - y (y gy)).
void add_through_norm(const Row& row, const TensorView& tensor, int64_t t, Vector gradient,
                      Judged& result) {
  if (row.p.inputs.qk_l2norm) {
    Vector y = row.raw(tensor, t, row.head, row.size.K);
    const Tracked norm = row.norm(y);
    for (Tracked& x : y) x = x * norm;
    const Tracked along = dot(y, gradient);
    for (std::size_t i = 0; i < y.size(); ++i) gradient[i] = norm * (gradient[i] - y[i] * along);
  }
  for (int64_t i = 0; i < row.size.K; ++i) add(result, row.key_index(t) + i, gradient[i]);
}

}  // namespace

GatedDeltaRuleJudge reference_forward(const GatedDeltaRuleProblem& problem) {
  GatedDeltaRuleJudge result;
  result.o = Judged(problem.v.shape);
  result.final_state = Judged(state_shape(problem));
  for_each_row(problem, [&](const Row& row) {
    State state(row, problem.initial_state);
    for (int64_t t = 0; t < row.length(); ++t) {
      advance(row, t, state);
      const Vector o = state.transposed_times(row.q(t));
      for (int64_t j = 0; j < row.size.V; ++j)
        add(result.o, row.number_index(t) * row.size.V + j, Tracked(problem.inputs.scale) * o[j]);
    }
    add_state(row, state, result.final_state);
  });
  return result;
}

GatedDeltaRuleJudge reference_backward(const GatedDeltaRuleProblem& problem,
                                       const GatedDeltaRuleGradients& gradients) {
  const GatedDeltaRuleInputs& inputs = problem.inputs;
  GatedDeltaRuleJudge result;
  result.q = result.k = Judged(problem.q.shape);
  result.v = Judged(problem.v.shape);
  result.g = result.beta = Judged(problem.g.shape);
  result.initial_state = Judged(state_shape(problem));
  result.A_log = result.dt_bias = Judged({problem.v.shape[2]});
  for_each_row(problem, [&](const Row& row) {
    std::vector<State> states{State(row, problem.initial_state)};  // before every token
    for (int64_t t = 0; t < row.length(); ++t) {
      State next = states.back();
      advance(row, t, next);
      states.push_back(std::move(next));
    }
    State gS(row, gradients.final_state);  // of the state behind token t
    for (int64_t t = row.length() - 1; t >= 0; --t) {
      const Tracked decay = exp(row.g(t)), beta = row.beta(t), scale = problem.inputs.scale;
      const Vector q = row.q(t), k = row.k(t);
      Vector go(row.size.V);
      if (gradients.o) go = row.raw(gradients.o, t, row.value_head, row.size.V);

      Vector gq = scaled(scale, states[t + 1].times(go));
      gS.add_outer(q, scaled(scale, go));

      State decayed = states[t];
      decayed.scale(decay);
      const Vector error = error_of(decayed, k, row.v(t)), u = scaled(beta, error);
      const Vector gu = gS.transposed_times(k);
      Vector gk = gS.times(u);
      Tracked gbeta = dot(gu, error);
      const Vector gv = scaled(beta, gu);

      Vector minus = gv;
      for (Tracked& x : minus) x = -x;
      gS.add_outer(k, minus);
      const Vector through_state = decayed.times(minus);
      for (int64_t i = 0; i < row.size.K; ++i) gk[i] += through_state[i];
      Tracked gg = dot(gS.at, decayed.at);
      gS.scale(decay);

      if (inputs.A_log) {
        add(result.A_log, row.value_head, gg * row.g(t));
        gg = -(gg * row.rate() * softplus_slope(row.raw_g(t)));
        add(result.dt_bias, row.value_head, gg);
      }
      if (inputs.beta_sigmoid) {
        const Tracked s = sigmoid(row.raw_beta(t));
        gbeta = gbeta * Tracked(row.largest_beta()) * s * (Tracked(1.0) - s);
      }
      add(result.g, row.number_index(t), gg);
      add(result.beta, row.number_index(t), gbeta);
      add_through_norm(row, problem.q, t, std::move(gq), result.q);
      add_through_norm(row, problem.k, t, std::move(gk), result.k);
      for (int64_t j = 0; j < row.size.V; ++j)
        add(result.v, row.number_index(t) * row.size.V + j, gv[j]);
    }
    add_state(row, gS, result.initial_state);
  });
  return result;
}

}  // namespace linescan
