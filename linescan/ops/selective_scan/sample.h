// Random problems of selective_scan that own their tensors: what the tests and `linescan check` judge.
#pragma once

#include <ostream>
#include <vector>

#include "linescan/ops/parallel.h"
#include "linescan/ops/sample_tensor.h"
#include "linescan/ops/selective_scan/selective_scan.h"

namespace linescan {

struct SelectiveScanCase {
  int64_t batch = 2, channels = 6, groups = 1, length = 7, states = 1;
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kLengthLast;
  bool softplus = true, bias = true, gate = false, skip = true, initial = false;
  bool constant_B = false, constant_C = false;
  DType out_dtype = DType::kFloat32;
  int misalign = 0;

  friend std::ostream& operator<<(std::ostream& out, const SelectiveScanCase& c) {
    return out << c.batch << 'x' << c.channels << " groups " << c.groups << " length " << c.length
               << " states " << c.states << ' ' << name_of(c.dtype) << " layout "
               << static_cast<int>(c.layout) << (c.softplus ? " softplus" : "")
               << (c.bias ? " bias" : "") << (c.gate ? " gate" : "") << (c.skip ? " D" : "")
               << (c.initial ? " initial" : "") << (c.constant_B ? " constant B" : "")
               << (c.constant_C ? " constant C" : "") << " misalign " << c.misalign;
  }
};

// The c of the bound (judged.h); README.md, section Numerics, says why.
inline constexpr double kSelectiveScanBound = 4;
// The same of the gradients of B and C on GPUs with several states.
double selective_scan_gpu_factor_bound(DType dtype);

// Inputs, upstream gradients, and outputs that start as NaN.
struct SelectiveScanSample {
  SampleTensor u, delta, A, B, C, D, bias, z, initial, out, last;
  SampleTensor gout, glast, gu, gdelta, gA, gB, gC, gD, gbias, gz, ginitial;
  SelectiveScanProblem problem;
  SelectiveScanGradients gradients;

  explicit SelectiveScanSample(const SelectiveScanCase& c);
  SelectiveScanSample(const SelectiveScanSample&) = delete;  // the views point into it

  // check, plan, forward and backward, in a workspace full of NaN.
  void run(const ParallelFor& parallel_for = serial_for, int64_t threads = 1);

  // From the inputs as they are; also for other samples of the same case.
  using Expected = ExpectedResults<SelectiveScanJudge>;
  // short_softplus: for kernels whose softplus has an absolute error of 1e-7.
  Expected expected(bool short_softplus = false) const;
  // Every result against it, after run(). `factor_bound`: of the gradients of B and C.
  std::vector<NamedVerdict> judge(const Expected& expected, double bound,
                                  double factor_bound) const;
  std::vector<NamedVerdict> judge(double bound = kSelectiveScanBound,
                                  double factor_bound = kSelectiveScanBound) const {
    return judge(expected(), bound, factor_bound);
  }
};

}  // namespace linescan
