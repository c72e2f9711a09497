// Random problems of gated_delta_rule that own their tensors: what the tests and `linescan check` judge.
#pragma once

#include <ostream>
#include <vector>

#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"
#include "linescan/ops/parallel.h"
#include "linescan/ops/sample_tensor.h"

namespace linescan {

struct GatedDeltaRuleCase {
  int64_t batch = 2, length = 7, heads = 2, value_heads = 2, K = 8, V = 8;
  DType dtype = DType::kFloat32;
  std::vector<int64_t> bounds = {};  // cu_seqlens; empty: not packed
  GatedDeltaRuleMode mode = GatedDeltaRuleMode::kAuto;
  bool reverse = false, initial = false, v_first = false;
  bool gate = false, gate_bias = false, norm = true, sigmoid = false, negative = false;
  bool float_beta = false;  // beta in P where T is a half type
  bool heads_first =
      false;  // memory [batch, heads, length, ..] instead of [batch, length, heads, ..]
  double largest_decay = 1;  // g is drawn from [-largest_decay, 0]
  double largest_key = 1;    // k from [-largest_key, largest_key]; keep it small without norm
  int misalign = 0;

  friend std::ostream& operator<<(std::ostream& out, const GatedDeltaRuleCase& c);
};

// The c of the bound (judged.h); README.md, section Numerics, says why.
inline constexpr double kGatedDeltaRuleBound = 1;
// On GPUs, by the type of q: operands of products are rounded to half types there, and the epsilon is theirs.
double gated_delta_rule_gpu_bound(DType dtype);

// Inputs, upstream gradients, and outputs that start as NaN.
struct GatedDeltaRuleSample {
  SampleTensor q, k, v, g, beta, initial, A_log, dt_bias, o, final_state;
  SampleTensor go, gfinal, gq, gk, gv, gg, gbeta, ginitial, gA_log, gdt_bias;
  std::vector<int64_t> bounds;
  GatedDeltaRuleProblem problem;
  GatedDeltaRuleGradients gradients;

  explicit GatedDeltaRuleSample(const GatedDeltaRuleCase& c);
  GatedDeltaRuleSample(const GatedDeltaRuleSample&) = delete;  // the views point into it

  // check, plan, forward and backward, in a workspace full of NaN.
  void run(const ParallelFor& parallel_for = serial_for, int64_t threads = 1);

  // From the inputs as they are; also for other samples of the same case.
  using Expected = ExpectedResults<GatedDeltaRuleJudge>;
  Expected expected() const;
  // Every result against it, after run().
  std::vector<NamedVerdict> judge(const Expected& expected, double bound) const;
  std::vector<NamedVerdict> judge(double bound = kGatedDeltaRuleBound) const {
    return judge(expected(), bound);
  }
};

}  // namespace linescan
