#include "linescan/ops/causal_conv1d/sample.h"

namespace linescan {

CausalConv1dSample::CausalConv1dSample(const CausalConv1dCase& c) : offsets(c.offsets) {
  std::mt19937_64 random(31);
  const DType parameter = accumulator_of(c.dtype);
  const int64_t sequences = offsets.empty() ? c.batch : static_cast<int64_t>(offsets.size()) - 1;
  const Shape tokens{c.batch, c.length, c.channels}, state{sequences, c.channels, c.width - 1};
  const auto data = [&](double bound) {
    return SampleTensor::uniform(tokens, c.dtype, -bound, bound, random, c.layout, c.misalign);
  };
  x = data(2);
  weight = SampleTensor::uniform({c.channels, c.width}, parameter, -1, 1, random);
  gweight = SampleTensor({c.channels, c.width}, parameter);
  if (c.bias) {
    bias = SampleTensor::uniform({c.channels}, parameter, -1, 1, random);
    gbias = SampleTensor({c.channels}, parameter);
  }
  if (c.initial) {
    initial = SampleTensor::uniform(state, c.dtype, -2, 2, random);
    gfinal = SampleTensor::uniform(state, c.dtype, -1, 1, random);
    ginitial = SampleTensor(state, c.dtype);
  }
  out = SampleTensor(tokens, c.dtype, c.layout, c.misalign);
  final_state = SampleTensor(state, c.dtype);
  gout = data(1);
  gx = SampleTensor(tokens, c.dtype, c.layout, c.misalign);

  problem = {.x = x.view(),
             .weight = weight.view(),
             .bias = bias.view(),
             .initial_state = initial.view(),
             .offsets = offsets.empty() ? nullptr : offsets.data(),
             .sequences = sequences,
             .silu = c.silu,
             .out = out.view(),
             .final_state = final_state.view()};
  gradients = {gout.view(),    gfinal.view(), gx.view(),
               gweight.view(), gbias.view(),  ginitial.view()};
}

void CausalConv1dSample::run(const ParallelFor& parallel_for, int64_t threads) {
  check(problem);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const CausalConv1dPlan plan = linescan::plan(size_of(problem), pass, threads);
    Workspace workspace(plan.workspace_bytes);
    if (pass == Pass::kForward)
      forward(problem, plan, workspace.data(), parallel_for);
    else
      backward(problem, gradients, plan, workspace.data(), parallel_for);
  }
}

std::vector<NamedVerdict> CausalConv1dSample::judge(double bound) const {
  const CausalConv1dJudge ahead = reference_forward(problem),
                          back = reference_backward(problem, gradients);
  std::vector<NamedVerdict> verdicts;
  const auto add = [&](const char* name, const SampleTensor& got, const Judged& expected) {
    if (got) verdicts.push_back(judge_sample(name, got, expected, bound));
  };
  add("out", out, ahead.out);
  add("final_state", final_state, ahead.final_state);
  add("grad_x", gx, back.x);
  add("grad_weight", gweight, back.weight);
  add("grad_bias", gbias, back.bias);
  add("grad_initial_state", ginitial, back.initial_state);
  return verdicts;
}

}  // namespace linescan
