#include "linescan/ops/selective_scan/sample.h"

namespace linescan {

SelectiveScanSample::SelectiveScanSample(const SelectiveScanCase& c) {
  std::mt19937_64 random(17);
  const DType parameter = accumulator_of(c.dtype);
  const Shape sequence{c.batch, c.channels, c.length}, state{c.batch, c.channels, c.states};
  const Shape varying{c.batch, c.groups, c.states, c.length}, constant{c.channels, c.states};
  const auto data = [&](const Shape& shape, double low, double high) {
    return SampleTensor::uniform(shape, c.dtype, low, high, random, c.layout, c.misalign);
  };
  const auto float_data = [&](const Shape& shape, double low, double high) {
    return SampleTensor::uniform(shape, parameter, low, high, random);
  };
  u = data(sequence, -1, 1);
  delta = c.softplus ? data(sequence, -4, 3) : data(sequence, 0.01, 0.5);
  A = float_data({c.channels, c.states}, -2, -0.1);
  B = data(c.constant_B ? constant : varying, -1, 1);
  C = data(c.constant_C ? constant : varying, -1, 1);
  if (c.skip) D = float_data({c.channels}, -1, 1);
  if (c.bias) bias = float_data({c.channels}, -0.5, 0.5);
  if (c.gate) z = data(sequence, -3, 3);
  if (c.initial) initial = float_data(state, -1, 1);
  out = SampleTensor(sequence, c.out_dtype, c.layout, c.misalign);
  last = SampleTensor(state, parameter);
  gout = SampleTensor::uniform(sequence, c.out_dtype, -1, 1, random, c.layout);
  if (c.initial) glast = float_data(state, -1, 1);

  const auto empty_like = [](const SampleTensor& t) {
    return SampleTensor(t.view().shape, t.view().dtype);
  };
  gu = SampleTensor(sequence, c.dtype, c.layout, c.misalign);
  gdelta = SampleTensor(sequence, c.dtype, c.layout);
  gA = empty_like(A);
  gB = empty_like(B);
  gC = empty_like(C);
  if (c.skip) gD = empty_like(D);
  if (c.bias) gbias = empty_like(bias);
  if (c.gate) gz = SampleTensor(sequence, c.dtype, c.layout);
  if (c.initial) ginitial = empty_like(initial);

  problem = {u.view(),    delta.view(), A.view(),       B.view(),   C.view(),   D.view(),
             bias.view(), z.view(),     initial.view(), c.softplus, out.view(), last.view()};
  gradients = {gout.view(), glast.view(), gu.view(),    gdelta.view(), gA.view(),      gB.view(),
               gC.view(),   gD.view(),    gbias.view(), gz.view(),     ginitial.view()};
}

void SelectiveScanSample::run(const ParallelFor& parallel_for, int64_t threads) {
  check(problem);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const SelectiveScanPlan plan = linescan::plan(size_of(problem), pass, threads);
    Workspace workspace(plan.workspace_bytes);
    if (pass == Pass::kForward)
      forward(problem, plan, workspace.data(), parallel_for);
    else
      backward(problem, gradients, plan, workspace.data(), parallel_for);
  }
}

double selective_scan_gpu_factor_bound(DType dtype) {
  const double cut = dtype == DType::kFloat32 ? 0 : 0x1p-10;  // of an addend, relatively
  return kSelectiveScanBound + cut / epsilon_of(DType::kFloat32);
}

SelectiveScanSample::Expected SelectiveScanSample::expected(bool short_softplus) const {
  const double size =
      short_softplus ? 1e-7 / (kSelectiveScanBound * epsilon_of(DType::kFloat32)) : 0;
  return {reference_forward(problem, size), reference_backward(problem, gradients, size)};
}

std::vector<NamedVerdict> SelectiveScanSample::judge(const Expected& expected, double bound,
                                                     double factor_bound) const {
  const auto& [ahead, back] = expected;
  std::vector<NamedVerdict> verdicts;
  const auto add = [&](const char* name, const SampleTensor& got, const Judged& of_reference) {
    const bool factor = &got == &gB || &got == &gC;
    if (got)
      verdicts.push_back(judge_sample(name, got, of_reference, factor ? factor_bound : bound));
  };
  add("out", out, ahead.out);
  add("last_state", last, ahead.last_state);
  add("grad_u", gu, back.u);
  add("grad_delta", gdelta, back.delta);
  add("grad_A", gA, back.A);
  add("grad_B", gB, back.B);
  add("grad_C", gC, back.C);
  add("grad_D", gD, back.D);
  add("grad_delta_bias", gbias, back.delta_bias);
  add("grad_z", gz, back.z);
  add("grad_initial_state", ginitial, back.initial_state);
  return verdicts;
}

}  // namespace linescan
