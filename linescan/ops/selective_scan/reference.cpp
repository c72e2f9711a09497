// The definition of selective_scan in plain loops over Tracked doubles: forward as the recurrence
// is written, backward as README.md derives it. Slow, and meant to be read.

#include "linescan/ops/selective_scan/selective_scan.h"

namespace linescan {
namespace {

Tracked silu(Tracked x) { return x * sigmoid(x); }
Tracked silu_slope(Tracked x) {
  const Tracked s = sigmoid(x);
  return s + x * s * (Tracked(1.0) - s);
}

// One row of the problem: a (batch, channel) pair, its inputs as functions of time and state.
struct Row {
  const SelectiveScanProblem& p;
  double softplus_size;
  SelectiveScanSize size = size_of(p);
  int64_t b, c;
  int64_t group = c / (size.channels / size.groups);

  Tracked raw_delta(int64_t t) const {
    Tracked x = read_element(p.delta, b, c, t);
    if (p.delta_bias) x += Tracked(read_element(p.delta_bias, c));
    return x;
  }
  Tracked dt(int64_t t) const {
    if (!p.delta_softplus) return raw_delta(t);
    const Tracked exact = softplus(raw_delta(t));
    return {exact.value, exact.size + softplus_size};
  }
  Tracked u(int64_t t) const { return read_element(p.u, b, c, t); }
  Tracked A(int64_t n) const { return read_element(p.A, c, n); }
  Tracked B(int64_t n, int64_t t) const { return factor(p.B, size.constant_B, n, t); }
  Tracked C(int64_t n, int64_t t) const { return factor(p.C, size.constant_C, n, t); }
  Tracked D() const { return p.D ? read_element(p.D, c) : 0.0; }
  Tracked z(int64_t t) const { return read_element(p.z, b, c, t); }
  Tracked initial(int64_t n) const {
    return p.initial_state ? read_element(p.initial_state, b, c, n) : 0.0;
  }

  Tracked factor(const TensorView& tensor, bool constant, int64_t n, int64_t t) const {
    return constant ? read_element(tensor, c, n) : read_element(tensor, b, group, n, t);
  }
  // Where the gradient of B[n, t] or C[n, t] is summed.
  int64_t factor_index(bool constant, int64_t n, int64_t t) const {
    return constant ? c * size.states + n
                    : ((b * size.groups + group) * size.states + n) * size.length + t;
  }
};

// h[t, n] of one row for t = -1 .. length - 1, at index (t + 1) * states + n; y without the gate.
void scan(const Row& row, std::vector<Tracked>& h, std::vector<Tracked>& y) {
  const int64_t states = row.size.states, length = row.size.length;
  h.assign((length + 1) * states, {});
  y.assign(length, {});
  for (int64_t n = 0; n < states; ++n) h[n] = row.initial(n);
  for (int64_t t = 0; t < length; ++t) {
    const Tracked dt = row.dt(t), u = row.u(t);
    y[t] = row.D() * u;
    for (int64_t n = 0; n < states; ++n) {
      Tracked& now = h[(t + 1) * states + n];
      now = exp(dt * row.A(n)) * h[t * states + n] + dt * row.B(n, t) * u;
      y[t] += row.C(n, t) * now;
    }
  }
}

}  // namespace

SelectiveScanJudge reference_forward(const SelectiveScanProblem& problem, double softplus_size) {
  const SelectiveScanSize size = size_of(problem);
  SelectiveScanJudge result;
  result.out = Judged({size.batch, size.channels, size.length});
  result.last_state = Judged({size.batch, size.channels, size.states});
  std::vector<Tracked> h, y;
  for (int64_t b = 0; b < size.batch; ++b)
    for (int64_t c = 0; c < size.channels; ++c) {
      const Row row{.p = problem, .softplus_size = softplus_size, .b = b, .c = c};
      scan(row, h, y);
      const int64_t index = b * size.channels + c;
      for (int64_t t = 0; t < size.length; ++t)
        add(result.out, index * size.length + t, problem.z ? y[t] * silu(row.z(t)) : y[t]);
      for (int64_t n = 0; n < size.states; ++n)
        add(result.last_state, index * size.states + n, h[size.length * size.states + n]);
    }
  return result;
}

SelectiveScanJudge reference_backward(const SelectiveScanProblem& problem,
                                      const SelectiveScanGradients& gradients,
                                      double softplus_size) {
  const SelectiveScanSize size = size_of(problem);
  const Shape sequence{size.batch, size.channels, size.length};
  SelectiveScanJudge result;
  result.u = result.delta = result.z = Judged(sequence);
  result.A = Judged({size.channels, size.states});
  result.B = Judged(problem.B.shape);
  result.C = Judged(problem.C.shape);
  result.D = result.delta_bias = Judged({size.channels});
  result.initial_state = Judged({size.batch, size.channels, size.states});

  std::vector<Tracked> h, y, gh;
  for (int64_t b = 0; b < size.batch; ++b)
    for (int64_t c = 0; c < size.channels; ++c) {
      const Row row{.p = problem, .softplus_size = softplus_size, .b = b, .c = c};
      scan(row, h, y);
      const int64_t states = size.states, index = b * size.channels + c;
      // gh[n]: what arrives at h[t, n] from the right.
      gh.assign(states, {});
      if (gradients.last_state)
        for (int64_t n = 0; n < states; ++n) gh[n] = read_element(gradients.last_state, b, c, n);

      for (int64_t t = size.length - 1; t >= 0; --t) {
        const Tracked dt = row.dt(t), u = row.u(t);
        Tracked gy = gradients.out ? read_element(gradients.out, b, c, t) : 0.0;
        if (problem.z) {
          add(result.z, index * size.length + t, gy * y[t] * silu_slope(row.z(t)));
          gy = gy * silu(row.z(t));
        }
        Tracked gu = row.D() * gy, gdt;
        for (int64_t n = 0; n < states; ++n) {
          const Tracked a = exp(dt * row.A(n)), before = h[t * states + n];
          const Tracked B = row.B(n, t);
          gh[n] += row.C(n, t) * gy;
          gu += gh[n] * dt * B;
          gdt += gh[n] * (row.A(n) * a * before + B * u);
          add(result.A, c * states + n, gh[n] * dt * a * before);
          add(result.B, row.factor_index(size.constant_B, n, t), gh[n] * dt * u);
          add(result.C, row.factor_index(size.constant_C, n, t), gy * h[(t + 1) * states + n]);
          gh[n] = a * gh[n];
        }
        if (problem.delta_softplus) gdt = gdt * softplus_slope(row.raw_delta(t));
        add(result.u, index * size.length + t, gu);
        add(result.delta, index * size.length + t, gdt);
        add(result.delta_bias, c, gdt);
        add(result.D, c, gy * u);
      }
      for (int64_t n = 0; n < states; ++n) add(result.initial_state, index * states + n, gh[n]);
    }
  return result;
}

}  // namespace linescan
