// Random problems of causal_conv1d that own their tensors: what the tests judge.
#pragma once

#include <ostream>
#include <vector>

#include "linescan/ops/causal_conv1d/causal_conv1d.h"
#include "linescan/ops/parallel.h"
#include "linescan/ops/sample_tensor.h"

namespace linescan {

struct CausalConv1dCase {
  int64_t batch = 2, length = 9, channels = 8, width = 4;
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kLengthLast;  // of x, out and their gradients: row-major is channels-last
  bool bias = true, silu = true, initial = false;
  std::vector<int64_t> offsets = {};  // packed sequences; batch is 1
  int misalign = 0;

  friend std::ostream& operator<<(std::ostream& out, const CausalConv1dCase& c) {
    out << c.batch << 'x' << c.length << 'x' << c.channels << " width " << c.width << ' '
        << name_of(c.dtype) << " layout " << static_cast<int>(c.layout) << (c.bias ? " bias" : "")
        << (c.silu ? " silu" : "") << (c.initial ? " initial" : "") << " misalign " << c.misalign;
    if (!c.offsets.empty()) out << " sequences " << c.offsets.size() - 1;
    return out;
  }
};

// The c of the bound (judged.h); README.md, section Numerics, says why.
inline constexpr double kCausalConv1dBound = 4;

// Inputs, upstream gradients, and outputs that start as NaN. With `initial` there is also a gradient
// of the final state.
struct CausalConv1dSample {
  std::vector<int64_t> offsets;
  SampleTensor x, weight, bias, initial, out, final_state;
  SampleTensor gout, gfinal, gx, gweight, gbias, ginitial;
  CausalConv1dProblem problem;
  CausalConv1dGradients gradients;

  explicit CausalConv1dSample(const CausalConv1dCase& c);
  CausalConv1dSample(const CausalConv1dSample&) = delete;  // the views point into it

  // check, plan, forward and backward on the CPU, in a workspace full of NaN.
  void run(const ParallelFor& parallel_for = serial_for, int64_t threads = 1);

  // Every result against the reference.
  std::vector<NamedVerdict> judge(double bound = kCausalConv1dBound) const;
};

}  // namespace linescan
