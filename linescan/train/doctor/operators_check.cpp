// Every operator of ours has a backward pass on this device, and what it gives agrees with central
// differences in double precision on the CPU, along one random direction for every input.

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "linescan/binding/causal_conv1d.h"
#include "linescan/binding/depthwise_conv.h"
#include "linescan/binding/gated_delta_rule.h"
#include "linescan/binding/layer_norm.h"
#include "linescan/binding/selective_scan.h"
#include "linescan/binding/ss2d.h"
#include "linescan/train/doctor/checks.h"

namespace linescan {
namespace {

using Tensors = std::vector<at::Tensor>;

// An operator on inputs of a few hundred numbers.
struct Case {
  const char* name;
  std::vector<const char*> arguments;
  Tensors inputs;  // float64 on the CPU
  at::Tensor (*run)(const Tensors& inputs);
};

at::Tensor normal(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }
at::Tensor positive(at::IntArrayRef sizes) { return at::rand(sizes, at::kDouble) + 0.5; }

// Sizes on neither side of a vector's width, so that tails are met.
std::vector<Case> make_cases() {
  return {
      {"selective_scan",
       {"u", "delta", "A", "B", "C", "D"},
       {normal({2, 6, 19}), positive({2, 6, 19}), -positive({6, 3}), normal({2, 2, 3, 19}),
        normal({2, 2, 3, 19}), normal({6})},
       [](const Tensors& t) {
         return std::get<0>(selective_scan(t[0], t[1], t[2], t[3], t[4], t[5]));
       }},
      {"ss2d",
       {"x", "x_proj_weight", "dt_proj_weight", "dt_proj_bias", "A_log", "D"},
       {normal({2, 6, 5, 7}), 0.3 * normal({4, 6, 6}), normal({4, 6, 2}), normal({4, 6}),
        0.3 * normal({24, 2}), normal({24})},
       [](const Tensors& t) {
         constexpr int64_t kRoutes[] = {0, 1, 6, 7};
         return ss2d(t[0], t[1], {}, t[2], t[3], t[4], t[5], kRoutes);
       }},
      {"layer_norm",
       {"x", "weight", "bias"},
       {normal({2, 5, 19}), normal({19}), normal({19})},
       [](const Tensors& t) { return layer_norm(t[0], t[1], t[2], 1e-5).out; }},
      {"depthwise_conv",
       {"x", "weight", "bias"},
       {normal({2, 5, 7, 19}), normal({19, 1, 3, 3}), normal({19})},
       [](const Tensors& t) { return depthwise_conv(t[0], t[1], t[2], true); }},
      {"causal_conv1d",
       {"x", "weight", "bias"},
       {normal({2, 19, 6}), normal({6, 4}), normal({6})},
       [](const Tensors& t) { return std::get<0>(causal_conv1d(t[0], t[1], t[2])); }},
      {"gated_delta_rule",
       {"q", "k", "v", "g", "beta"},
       {normal({2, 19, 2, 8}), normal({2, 19, 2, 8}), normal({2, 19, 2, 6}), -positive({2, 19, 2}),
        normal({2, 19, 2})},
       [](const Tensors& t) {
         GatedDeltaRuleOptions options;
         options.qk_l2norm = true;
         options.beta_sigmoid = true;
         return std::get<0>(gated_delta_rule(t[0], t[1], t[2], t[3], t[4], options));
       }},
  };
}

// The gradients of sum(weights * output), computed on the device.
Tensors gradients_of(const Case& op, const at::Tensor& weights, const Compute& compute) {
  const at::ScalarType type = compute.on_gpu() ? at::kFloat : at::kDouble;
  Tensors inputs;
  for (const at::Tensor& input : op.inputs)
    inputs.push_back(input.to(compute.device, type).clone().requires_grad_());
  const at::Tensor out = op.run(inputs);
  if (!out.requires_grad()) return {};
  (out * weights.to(compute.device, type)).sum().backward();
  Tensors gradients;
  for (const at::Tensor& input : inputs)
    gradients.push_back(input.grad().defined() ? input.grad().cpu().to(at::kDouble) : at::Tensor());
  return gradients;
}

double difference_along(const Case& op, std::size_t input, const at::Tensor& direction,
                        const at::Tensor& weights) {
  constexpr double kStep = 1e-5;  // both errors, of the step and of rounding, are near 1e-10
  const at::NoGradGuard no_grad;
  const auto value_at = [&](double step) {
    Tensors inputs = op.inputs;
    inputs[input] = inputs[input] + step * direction;
    return (op.run(inputs) * weights).sum().item<double>();
  };
  return (value_at(kStep) - value_at(-kStep)) / (2 * kStep);
}

// Share of the sum of absolute terms by which the gradients may be off.
double allowed_share(const Compute& compute) { return compute.on_gpu() ? 2e-4 : 1e-7; }

struct Verdict {
  double worst = 0;     // of its bound
  std::string failure;  // empty: good
};

Verdict judge(const Case& op, const Compute& compute) {
  const at::Tensor weights = [&] {
    const at::NoGradGuard no_grad;
    return normal(op.run(op.inputs).sizes());
  }();
  const Tensors gradients = gradients_of(op, weights, compute);
  if (gradients.empty()) return {0, fmt::format("{} has no backward pass", op.name)};
  Verdict verdict;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined())
      return {0, fmt::format("{} gives no gradient of {}", op.name, op.arguments[i])};
    const at::Tensor direction = normal(op.inputs[i].sizes());
    const at::Tensor terms = gradients[i] * direction;
    const double got = terms.sum().item<double>();
    const double expected = difference_along(op, i, direction, weights);
    const double bound = allowed_share(compute) * terms.abs().sum().item<double>();
    const double ratio = std::abs(got - expected) / bound;
    if (!(ratio <= 1))  // a NaN too
      return {ratio, fmt::format("{}: along a direction the gradient of {} is {:.6g}, differences "
                                 "say {:.6g}, allowed is {:.1e}",
                                 op.name, op.arguments[i], got, expected, bound)};
    verdict.worst = std::max(verdict.worst, ratio);
  }
  return verdict;
}

}  // namespace

Finding check_operators(const Patient& patient) {
  std::string good, absent;
  for (const Case& op : make_cases()) {
    try {
      const Verdict verdict = judge(op, patient.compute());
      if (!verdict.failure.empty())
        return {
            "operators", Grade::kFail, verdict.failure,
            "Run 'linescan check' and report what it prints: the kernel is wrong on this machine."};
      good += fmt::format("{}{} {:.1e}", good.empty() ? "" : ", ", op.name, verdict.worst);
    } catch (const c10::Error&) {  // no kernel for this device
      absent += fmt::format(" {}", op.name);
    }
  }
  const std::string measured =
      fmt::format("gradients agree with differences; share of what is allowed: {}", good);
  if (absent.empty()) return {"operators", Grade::kPass, measured};
  return {"operators", Grade::kWarn,
          fmt::format("{}; not on {}:{}", measured, describe(patient.compute()), absent),
          "Networks with these operators train on the CPU only."};
}

}  // namespace linescan
