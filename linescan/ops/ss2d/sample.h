// Random problems of ss2d that own their tensors: what the tests and `linescan check` judge.
#pragma once

#include <ostream>
#include <vector>

#include "linescan/ops/parallel.h"
#include "linescan/ops/sample_tensor.h"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

struct Ss2dCase {
  int64_t batch = 2, channels = 6, height = 5, width = 7, states = 1, rank = 1;
  std::vector<int64_t> routes = {0, 1, 6, 7};
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kChannelsLast;
  DType out_dtype = DType::kFloat32;
  bool float_weight = false;
  int misalign = 0;             // numbers that x and the result lie behind an aligned address
  int misaligned_gradient = 0;  // the same of the result's gradient

  friend std::ostream& operator<<(std::ostream& out, const Ss2dCase& c) {
    out << c.batch << 'x' << c.channels << 'x' << c.height << 'x' << c.width << " states "
        << c.states << " rank " << c.rank << ' ' << name_of(c.dtype) << " layout "
        << static_cast<int>(c.layout) << " routes";
    for (int64_t route : c.routes) out << ' ' << route;
    return out;
  }
};

// The c of the bound (judged.h); README.md, section Numerics, says why.
inline constexpr double kSs2dBound = 4;
// On a GPU the sums over channels and pixels that make the gradients of projection and dt_proj_weight
// take addends rounded to the type of half data (half a unit of its epsilon each).
constexpr double ss2d_rounded_bound(DType data) {
  return size_of(data) == 2 ? epsilon_of(data) / epsilon_of(DType::kFloat32) / 2 : kSs2dBound;
}

// Inputs, upstream gradients, and outputs that start as NaN.
struct Ss2dSample {
  std::vector<int64_t> routes;
  SampleTensor x, projection, dt_weight, dt_bias, A_log, D, out;
  SampleTensor gout, gx, gprojection, gdt_weight, gdt_bias, gA_log, gD;
  Ss2dProblem problem;
  Ss2dGradients gradients;

  explicit Ss2dSample(const Ss2dCase& c);
  Ss2dSample(const Ss2dSample&) = delete;  // the views point into it

  // check, plan, forward and backward, in a workspace full of NaN.
  void run(const ParallelFor& parallel_for = serial_for, int64_t threads = 1);

  // From the inputs as they are; also for other samples of the same case.
  using Expected = ExpectedResults<Ss2dJudge>;
  Expected expected() const;
  // Every result against it, after run().
  std::vector<NamedVerdict> judge(const Expected& expected, double bound) const;
  std::vector<NamedVerdict> judge(double bound = kSs2dBound) const {
    return judge(expected(), bound);
  }
};

}  // namespace linescan
