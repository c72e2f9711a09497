#include "linescan/train/optimizer.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include "linescan/models/decay.h"
#include "linescan/train/recipe.h"

namespace linescan {

AdamW::AdamW(const torch::nn::Module& module, const Recipe& recipe)
    : groups_{{{}, recipe.weight_decay}, {{}, 0.0}},
      beta1_(recipe.beta1),
      beta2_(recipe.beta2),
      eps_(recipe.eps) {
  const at::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    const bool decayed = has_weight_decay(item.key(), item.value(), recipe.decay_marks);
    groups_[decayed ? 0 : 1].members.push_back(parameters_.size());
    parameters_.emplace_back(item.key(), item.value());
    first_.push_back(at::zeros_like(item.value()));
    second_.push_back(at::zeros_like(item.value()));
  }
  updates_ = at::zeros({1}, first_.empty() ? at::TensorOptions() : first_.front().options());
}

void AdamW::clear_gradients() {
  for (auto& [name, parameter] : parameters_) parameter.mutable_grad().reset();
}

at::Tensor AdamW::gradient_norm() const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& [name, parameter] : parameters_)
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  if (gradients.empty()) return at::zeros({}, updates_.options());
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
}

void AdamW::step(const at::Tensor& lr, const at::Tensor& divisor, const at::Tensor& skip) {
  const at::NoGradGuard no_grad;
  updates_ += 1 - skip;
  for (const Group& group : groups_) {
    std::vector<at::Tensor> weights, gradients, first, second;
    for (std::size_t i : group.members) {
      const at::Tensor& weight = parameters_[i].second;
      if (!weight.grad().defined()) continue;
      weights.push_back(weight);
      gradients.push_back(weight.grad());
      first.push_back(first_[i]);
      second.push_back(second_[i]);
    }
    if (weights.empty()) continue;
    const std::vector<at::Tensor> updates(weights.size(), updates_);
    at::_fused_adamw_(weights, gradients, first, second, /*max_exp_avg_sqs=*/{}, updates, lr,
                      beta1_, beta2_, group.weight_decay, eps_, /*amsgrad=*/false,
                      /*maximize=*/false, divisor, skip);
  }
}

NamedTensors AdamW::state() const {
  NamedTensors tensors;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    tensors.emplace_back("m." + parameters_[i].first, first_[i]);
    tensors.emplace_back("v." + parameters_[i].first, second_[i]);
  }
  tensors.emplace_back("updates", updates_);
  return tensors;
}

}  // namespace linescan
