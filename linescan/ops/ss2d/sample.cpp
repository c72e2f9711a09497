#include "linescan/ops/ss2d/sample.h"

namespace linescan {

Ss2dSample::Ss2dSample(const Ss2dCase& c) : routes(c.routes) {
  std::mt19937_64 random(23);
  const DType parameter = accumulator_of(c.dtype);
  const auto K = static_cast<int64_t>(routes.size());
  const Shape plane{c.batch, c.channels, c.height, c.width};
  const Shape projected{c.batch, c.height * c.width, K * (c.rank + 2 * c.states)};
  const auto draw = [&](const Shape& shape, DType dtype, double low, double high,
                        Layout layout = Layout::kLengthLast, int misalign = 0) {
    return SampleTensor::uniform(shape, dtype, low, high, random, layout, misalign);
  };
  x = draw(plane, c.dtype, -1, 1, c.layout, c.misalign);
  projection = draw(projected, c.dtype, -1, 1);
  dt_weight = draw({K, c.channels, c.rank}, c.float_weight ? parameter : c.dtype, -1, 1);
  dt_bias = draw({K, c.channels}, parameter, -3, 1);
  A_log = draw({K * c.channels, c.states}, parameter, -1, 1);
  D = draw({K * c.channels}, parameter, -1, 1);
  out = SampleTensor(plane, c.out_dtype, c.layout, c.misalign);
  gout = draw(plane, c.out_dtype, -1, 1, c.layout, c.misaligned_gradient);
  gx = SampleTensor(plane, c.dtype, c.layout);
  const auto like = [](const SampleTensor& t) {
    return SampleTensor(t.view().shape, t.view().dtype);
  };
  gprojection = like(projection);
  gdt_weight = like(dt_weight);
  gdt_bias = like(dt_bias);
  gA_log = like(A_log);
  gD = like(D);
  problem = {x.view(),         projection.view(),
             dt_weight.view(), dt_bias.view(),
             A_log.view(),     D.view(),
             routes.data(),    K,
             out.view(),       {}};
  gradients = {gout.view(),     gx.view(),     gprojection.view(), gdt_weight.view(),
               gdt_bias.view(), gA_log.view(), gD.view()};
}

void Ss2dSample::run(const ParallelFor& parallel_for, int64_t threads) {
  check(problem);
  for (Pass pass : {Pass::kForward, Pass::kBackward}) {
    const Ss2dPlan plan = linescan::plan(size_of(problem), pass, threads);
    Workspace workspace(plan.workspace_bytes);
    if (pass == Pass::kForward)
      forward(problem, plan, workspace.data(), parallel_for);
    else
      backward(problem, gradients, plan, workspace.data(), parallel_for);
  }
}

Ss2dSample::Expected Ss2dSample::expected() const {
  return {reference_forward(problem), reference_backward(problem, gradients)};
}

std::vector<NamedVerdict> Ss2dSample::judge(const Expected& expected, double bound) const {
  const auto& [ahead, back] = expected;
  std::vector<NamedVerdict> verdicts;
  const auto add = [&](const char* name, const SampleTensor& got, const Judged& of_reference) {
    if (got) verdicts.push_back(judge_sample(name, got, of_reference, bound));
  };
  add("out", out, ahead.out);
  add("grad_x", gx, back.x);
  add("grad_projection", gprojection, back.projection);
  add("grad_dt_proj_weight", gdt_weight, back.dt_weight);
  add("grad_dt_proj_bias", gdt_bias, back.dt_bias);
  add("grad_A_log", gA_log, back.A_log);
  add("grad_D", gD, back.D);
  return verdicts;
}

}  // namespace linescan
