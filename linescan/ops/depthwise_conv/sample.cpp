#include "linescan/ops/depthwise_conv/sample.h"

namespace linescan {

DepthwiseConvSample::DepthwiseConvSample(const DepthwiseConvCase& c) {
  std::mt19937_64 random(29);
  const Shape grid{c.batch, c.height, c.width, c.channels};
  const auto data = [&](double bound) {
    return SampleTensor::uniform(grid, c.dtype, -bound, bound, random, Layout::kLengthLast,
                                 c.misalign);
  };
  x = data(2);
  weight = SampleTensor::uniform({c.channels, 3, 3}, DType::kFloat32, -1, 1, random);
  gweight = SampleTensor({c.channels, 3, 3}, DType::kFloat32);
  if (c.bias) {
    bias = SampleTensor::uniform({c.channels}, DType::kFloat32, -1, 1, random);
    gbias = SampleTensor({c.channels}, DType::kFloat32);
  }
  out = SampleTensor(grid, c.dtype, Layout::kLengthLast, c.misalign);
  gout = data(1);
  gx = SampleTensor(grid, c.dtype, Layout::kLengthLast, c.misalign);

  problem = {x.view(), weight.view(), bias.view(), c.silu, out.view()};
  gradients = {gout.view(), gx.view(), gweight.view(), gbias.view()};
}

double depthwise_conv_input_bound(DType dtype) {
  const double roundings = dtype == DType::kFloat32 ? 0 : 0.5;  // of one term, to nearest
  return kDepthwiseConvBound + roundings * epsilon_of(dtype) / epsilon_of(DType::kFloat32);
}

std::vector<NamedVerdict> DepthwiseConvSample::judge() const {
  const DepthwiseConvJudge ahead = reference_forward(problem),
                           back = reference_backward(problem, gradients);
  std::vector<NamedVerdict> verdicts = {
      judge_sample("out", out, ahead.out, kDepthwiseConvBound),
      judge_sample("grad_x", gx, back.x, depthwise_conv_input_bound(problem.x.dtype)),
      judge_sample("grad_weight", gweight, back.weight, kDepthwiseConvBound)};
  if (gbias) verdicts.push_back(judge_sample("grad_bias", gbias, back.bias, kDepthwiseConvBound));
  return verdicts;
}

}  // namespace linescan
