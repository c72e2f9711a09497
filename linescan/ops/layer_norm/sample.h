// Random problems of layer_norm that own their tensors: what the tests judge.
#pragma once

#include <ostream>
#include <vector>

#include "linescan/ops/layer_norm/layer_norm.h"
#include "linescan/ops/sample_tensor.h"

namespace linescan {

struct LayerNormCase {
  int64_t rows = 5, channels = 96;
  DType dtype = DType::kFloat32, out_dtype = DType::kFloat32;
  bool affine = true, skip = false;
  double offset = 0;  // added to x: the mean is then far from zero
  int misalign = 0;

  friend std::ostream& operator<<(std::ostream& out, const LayerNormCase& c) {
    return out << c.rows << 'x' << c.channels << ' ' << name_of(c.dtype) << " to "
               << name_of(c.out_dtype) << (c.affine ? " affine" : "") << (c.skip ? " skip" : "")
               << " offset " << c.offset << " misalign " << c.misalign;
  }
};

// Inputs, upstream gradients, and outputs that start as NaN.
struct LayerNormSample {
  SampleTensor x, weight, bias, out, mean, rstd, gout, skip, gx, gweight, gbias;
  LayerNormProblem problem;
  LayerNormGradients gradients;

  explicit LayerNormSample(const LayerNormCase& c);
  LayerNormSample(const LayerNormSample&) = delete;  // the views point into it

  // The results of forward and backward against the reference.
  std::vector<NamedVerdict> judge() const;
};

// The c of the bound (judged.h); README.md, section Numerics, says why.
inline constexpr double kLayerNormBound = 4;

}  // namespace linescan
