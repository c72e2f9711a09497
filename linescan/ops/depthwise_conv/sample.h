// Random problems of depthwise_conv that own their tensors: what the tests judge.
#pragma once

#include <ostream>
#include <vector>

#include "linescan/ops/depthwise_conv/depthwise_conv.h"
#include "linescan/ops/sample_tensor.h"

namespace linescan {

struct DepthwiseConvCase {
  int64_t batch = 2, height = 5, width = 9, channels = 8;
  DType dtype = DType::kFloat32;
  bool bias = true, silu = true;
  int misalign = 0;

  friend std::ostream& operator<<(std::ostream& out, const DepthwiseConvCase& c) {
    return out << c.batch << 'x' << c.height << 'x' << c.width << 'x' << c.channels << ' '
               << name_of(c.dtype) << (c.bias ? " bias" : "") << (c.silu ? " silu" : "")
               << " misalign " << c.misalign;
  }
};

// Inputs, upstream gradients, and outputs that start as NaN.
struct DepthwiseConvSample {
  SampleTensor x, weight, bias, out, gout, gx, gweight, gbias;
  DepthwiseConvProblem problem;
  DepthwiseConvGradients gradients;

  explicit DepthwiseConvSample(const DepthwiseConvCase& c);
  DepthwiseConvSample(const DepthwiseConvSample&) = delete;  // the views point into it

  // The results of forward and backward against the reference.
  std::vector<NamedVerdict> judge() const;
};

// The c of the bound (judged.h); README.md, section Numerics, says why. The gradient of x is made of
// numbers that have been rounded to x's type on their way.
inline constexpr double kDepthwiseConvBound = 4;
double depthwise_conv_input_bound(DType dtype);

}  // namespace linescan
