#include "linescan/ops/layer_norm/sample.h"

namespace linescan {

LayerNormSample::LayerNormSample(const LayerNormCase& c) {
  std::mt19937_64 random(23);
  const Shape plane{c.rows, c.channels}, line{c.channels}, column{c.rows};
  const auto data = [&](DType dtype, double centre) {
    return SampleTensor::uniform(plane, dtype, centre - 1, centre + 1, random, Layout::kLengthLast,
                                 c.misalign);
  };
  x = data(c.dtype, c.offset);
  if (c.affine) {
    weight = SampleTensor::uniform(line, DType::kFloat32, -2, 2, random);
    bias = SampleTensor::uniform(line, DType::kFloat32, -1, 1, random);
    gweight = SampleTensor(line, DType::kFloat32);
    gbias = SampleTensor(line, DType::kFloat32);
  }
  out = SampleTensor(plane, c.out_dtype, Layout::kLengthLast, c.misalign);
  mean = SampleTensor(column, DType::kFloat32);
  rstd = SampleTensor(column, DType::kFloat32);
  gout = data(c.out_dtype, 0);
  if (c.skip) skip = data(c.dtype, 0);
  gx = SampleTensor(plane, c.dtype, Layout::kLengthLast, c.misalign);

  problem = {x.view(), weight.view(), bias.view(), 1e-5, out.view(), mean.view(), rstd.view()};
  gradients = {gout.view(), skip.view(), gx.view(), gweight.view(), gbias.view()};
}

std::vector<NamedVerdict> LayerNormSample::judge() const {
  const LayerNormJudge ahead = reference_forward(problem),
                       back = reference_backward(problem, gradients);
  std::vector<NamedVerdict> verdicts;
  const auto add = [&](const char* name, const SampleTensor& got, const Judged& expected) {
    if (got) verdicts.push_back(judge_sample(name, got, expected, kLayerNormBound));
  };
  add("out", out, ahead.out);
  add("mean", mean, ahead.mean);
  add("rstd", rstd, ahead.rstd);
  add("grad_x", gx, back.x);
  add("grad_weight", gweight, back.weight);
  add("grad_bias", gbias, back.bias);
  return verdicts;
}

}  // namespace linescan
