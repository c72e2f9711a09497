#include "linescan/ops/gated_delta_rule/sample.h"

#include <cmath>
#include <utility>

namespace linescan {
namespace {

// The view of a tensor whose memory has the heads in front of the length.
TensorView heads_second(const SampleTensor& tensor, bool heads_first) {
  TensorView view = tensor.view();
  if (!heads_first || !view) return view;
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.strides[1], view.strides[2]);
  return view;
}

}  // namespace

double gated_delta_rule_gpu_bound(DType dtype) {
  if (dtype == DType::kFloat32) return kGatedDeltaRuleBound;
  return kGatedDeltaRuleBound / 4 * epsilon_of(dtype) / epsilon_of(DType::kFloat32);
}

std::ostream& operator<<(std::ostream& out, const GatedDeltaRuleCase& c) {
  out << c.batch << 'x' << c.length << " heads " << c.heads << '/' << c.value_heads << " K " << c.K
      << " V " << c.V << ' ' << name_of(c.dtype) << ' ' << name_of(c.mode) << " decay "
      << c.largest_decay << " key " << c.largest_key << " misalign " << c.misalign;
  for (const auto& [name, set] : {std::pair{"reverse", c.reverse},
                                  {"initial", c.initial},
                                  {"v_first", c.v_first},
                                  {"gate", c.gate},
                                  {"gate_bias", c.gate_bias},
                                  {"norm", c.norm},
                                  {"sigmoid", c.sigmoid},
                                  {"negative", c.negative},
                                  {"float_beta", c.float_beta},
                                  {"heads_first", c.heads_first},
                                  {"packed", !c.bounds.empty()}})
    if (set) out << ' ' << name;
  return out;
}

GatedDeltaRuleSample::GatedDeltaRuleSample(const GatedDeltaRuleCase& c) : bounds(c.bounds) {
  std::mt19937_64 random(23);
  const DType parameter = accumulator_of(c.dtype);
  const int64_t sequences = bounds.empty() ? c.batch : static_cast<int64_t>(bounds.size()) - 1;
  const auto sequence = [&](int64_t heads, int64_t size) {
    return c.heads_first ? Shape{c.batch, heads, c.length, size}
                         : Shape{c.batch, c.length, heads, size};
  };
  const auto numbers = [&] {
    return c.heads_first ? Shape{c.batch, c.value_heads, c.length}
                         : Shape{c.batch, c.length, c.value_heads};
  };
  const Shape keys = sequence(c.heads, c.K), values = sequence(c.value_heads, c.V);
  const Shape states = c.v_first ? Shape{sequences, c.value_heads, c.V, c.K}
                                 : Shape{sequences, c.value_heads, c.K, c.V};
  const auto draw = [&](const Shape& shape, DType type, double low, double high) {
    return SampleTensor::uniform(shape, type, low, high, random, Layout::kLengthLast, c.misalign);
  };
  q = draw(keys, c.dtype, -1, 1);
  k = draw(keys, c.dtype, -c.largest_key, c.largest_key);
  v = draw(values, c.dtype, -1, 1);
  g = c.gate ? draw(numbers(), parameter, -3, 1) : draw(numbers(), parameter, -c.largest_decay, 0);
  beta = c.sigmoid ? draw(numbers(), c.float_beta ? parameter : c.dtype, -2, 2)
                   : draw(numbers(), c.float_beta ? parameter : c.dtype, 0, 1);
  if (c.initial) initial = draw(states, parameter, -1, 1);
  if (c.gate) A_log = draw({c.value_heads}, parameter, -1, 1);
  if (c.gate_bias) dt_bias = draw({c.value_heads}, parameter, -1, 1);
  go = draw(values, c.dtype, -1, 1);
  if (c.initial) gfinal = draw(states, parameter, -1, 1);

  const auto empty_like = [&](const SampleTensor& t) {
    return t ? SampleTensor(t.view().shape, t.view().dtype, Layout::kLengthLast, c.misalign)
             : SampleTensor();
  };
  o = empty_like(v);
  final_state = SampleTensor(states, parameter);
  gq = empty_like(q);
  gk = empty_like(k);
  gv = empty_like(v);
  gg = empty_like(g);
  gbeta = empty_like(beta);
  ginitial = empty_like(initial);
  gA_log = empty_like(A_log);
  gdt_bias = empty_like(dt_bias);

  const auto view = [&](const SampleTensor& t) { return heads_second(t, c.heads_first); };
  problem = {.q = view(q),
             .k = view(k),
             .v = view(v),
             .g = view(g),
             .beta = view(beta),
             .initial_state = initial.view(),
             .inputs = {.A_log = A_log.view(),
                        .dt_bias = dt_bias.view(),
                        .scale = 1 / std::sqrt(static_cast<double>(c.K)),
                        .qk_l2norm = c.norm,
                        .beta_sigmoid = c.sigmoid,
                        .allow_neg_eigval = c.negative,
                        .state_v_first = c.v_first},
             .packed = !bounds.empty(),
             .bounds = bounds.data(),
             .packed_sequences = sequences,
             .reverse = c.reverse,
             .mode = c.mode,
             .o = view(o),
             .final_state = final_state.view(),
             .states = {}};
  gradients = {.o = view(go),
               .final_state = gfinal.view(),
               .q = view(gq),
               .k = view(gk),
               .v = view(gv),
               .g = view(gg),
               .beta = view(gbeta),
               .initial_state = ginitial.view(),
               .A_log = gA_log.view(),
               .dt_bias = gdt_bias.view()};
}

void GatedDeltaRuleSample::run(const ParallelFor& parallel_for, int64_t threads) {
  check(problem);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const GatedDeltaRulePlan plan = linescan::plan(size_of(problem), pass, threads);
    Workspace workspace(plan.workspace_bytes);
    if (pass == Pass::kForward)
      forward(problem, plan, workspace.data(), parallel_for);
    else
      backward(problem, gradients, plan, workspace.data(), parallel_for);
  }
}

GatedDeltaRuleSample::Expected GatedDeltaRuleSample::expected() const {
  return {reference_forward(problem), reference_backward(problem, gradients)};
}

std::vector<NamedVerdict> GatedDeltaRuleSample::judge(const Expected& expected,
                                                      double bound) const {
  const auto& [ahead, back] = expected;
  std::vector<NamedVerdict> verdicts;
  const auto add = [&](const char* name, const SampleTensor& memory, const TensorView& got,
                       const Judged& of_reference) {
    if (got)
      verdicts.push_back(
          {name, linescan::judge(got, of_reference, bound), memory.margins_intact()});
  };
  add("o", o, problem.o, ahead.o);
  add("final_state", final_state, problem.final_state, ahead.final_state);
  add("grad_q", gq, gradients.q, back.q);
  add("grad_k", gk, gradients.k, back.k);
  add("grad_v", gv, gradients.v, back.v);
  add("grad_g", gg, gradients.g, back.g);
  add("grad_beta", gbeta, gradients.beta, back.beta);
  add("grad_initial_state", ginitial, gradients.initial_state, back.initial_state);
  add("grad_A_log", gA_log, gradients.A_log, back.A_log);
  add("grad_dt_bias", gdt_bias, gradients.dt_bias, back.dt_bias);
  return verdicts;
}

}  // namespace linescan
