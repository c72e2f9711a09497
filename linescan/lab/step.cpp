#include "linescan/lab/step.h"

#include <torch/torch.h>

#include "linescan/train/recipe.h"

namespace linescan::lab {

std::string_view name_of(StepKind kind) {
  switch (kind) {
    case StepKind::kInference:
      return "inference";
    case StepKind::kTraining:
      return "training";
    default:
      return "training with update";
  }
}

int64_t passes(StepKind kind) { return kind == StepKind::kInference ? 1 : 3; }

Step::Step(ImageNetwork network, const ImageConfig& config, const Compute& compute, StepKind kind,
           int64_t batch, int64_t size)
    : network_(std::move(network)), compute_(compute), kind_(kind) {
  network_->train(kind != StepKind::kInference);
  const auto floats = at::TensorOptions(at::kFloat).device(compute.device);
  images_ = torch::randn({batch, in_channels_of(config), size, size}, floats);
  labels_ = torch::randint(classes_of(config), {batch}, floats.dtype(at::kLong));
  if (kind == StepKind::kInference) serving_.emplace(compute);
  if (kind != StepKind::kTrainingWithUpdate) return;
  optimizer_.emplace(*network_, Recipe());
  one_ = at::ones({1}, floats);
  zero_ = at::zeros({1}, floats);
  // Too small to change what is measured: the weights would drift into other numbers, and with them NaN.
  rate_ = at::full({}, 1e-9, compute.on_gpu() ? floats : floats.dtype(at::kDouble));
}

void Step::prepare() { network_->zero_grad(); }

void Step::run() {
  if (kind_ != StepKind::kInference) return train();
  const torch::NoGradGuard no_grad;
  network_->forward(images_);
}

void Step::train() {
  at::Tensor logits;
  {
    const ComputeScope scope(compute_);  // weights change with every step: cast in every one
    logits = network_->forward(images_).to(at::kFloat);
  }
  at::cross_entropy_loss(logits, labels_).backward();
  if (optimizer_) optimizer_->step(rate_, one_, zero_);
}

void Step::draw_images() {
  const torch::NoGradGuard no_grad;
  images_.normal_();
}

void Step::share_batch(const Step& other) {
  images_ = other.images_;
  labels_ = other.labels_;
}

}  // namespace linescan::lab
