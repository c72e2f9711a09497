#include "linescan/train/training_step.h"

#include <torch/torch.h>

#include <cmath>

#include "linescan/base/error.h"
#include "linescan/train/anomaly.h"
#include "linescan/train/sequences.h"
#include "linescan/train/tensor_statistics.h"

namespace linescan {
namespace {

at::Tensor one_if(const at::Tensor& condition) { return condition.to(at::kFloat); }

}  // namespace

TrainingStep::TrainingStep(const Recipe& recipe, const Compute& compute, Forward forward,
                           AdamW& optimizer, std::function<void(const std::string&)> message,
                           Loss loss)
    : recipe_(recipe),
      compute_(compute),
      forward_(std::move(forward)),
      optimizer_(optimizer),
      message_(std::move(message)),
      make_loss_(loss ? std::move(loss) : cross_entropy(recipe)),
      // Looking for anomalies waits for the device, which cannot be recorded.
      may_record_(recipe.graph && compute.on_gpu() && !recipe.detect_anomaly) {
  const auto doubles = at::TensorOptions(at::kDouble).device(compute.device);
  const auto floats = doubles.dtype(at::kFloat);
  if (compute.precision == Precision::kFp16) scale_.emplace(compute.device);
  lr_ = at::zeros({}, compute.on_gpu() ? floats : doubles);
  totals_ = at::zeros({3}, doubles);
  latest_ = at::zeros({2}, doubles);
  failed_ = at::zeros({1}, floats);
}

TrainingStep::Loss TrainingStep::cross_entropy(const Recipe& recipe) {
  return [smoothing = recipe.label_smoothing](const at::Tensor& logits, const at::Tensor& labels) {
    return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Mean, kNothingAsked,
                                  smoothing);
  };
}

void TrainingStep::expect_trainable(const at::Tensor& loss) {
  if (loss.numel() != 1)
    throw_error<Error>("the loss has shape {}, expected a scalar: take its mean or its sum",
                       sizes_text(loss.sizes()));
  if (!loss.requires_grad())
    throw_error<Error>(
        "the loss requires no gradient, expected one that does: all parameters are detached from "
        "it");
}

void TrainingStep::load(const at::Tensor& inputs, const at::Tensor& labels) {
  if (!inputs_.defined() || inputs_.sizes() != inputs.sizes()) {
    inputs_ = at::empty_like(inputs, inputs.options().device(compute_.device).pinned_memory(false));
    labels_ = at::empty_like(labels, labels.options().device(compute_.device).pinned_memory(false));
  }
  inputs_.copy_(inputs, /*non_blocking=*/true);
  labels_.copy_(labels, /*non_blocking=*/true);
}

void TrainingStep::expect_finite_inputs() const {
  if (const int64_t sample = first_bad_sample(inputs_); sample >= 0)
    throw_error<NotFinite>("the input of sample {} of the batch is not finite: {}", sample,
                           to_string(statistics_of(inputs_)));
}

at::Tensor TrainingStep::propagate() {
  graph_kept_ = !graph_before_.expired();
  optimizer_.clear_gradients();
  if (recipe_.detect_anomaly) expect_finite_inputs();
  const ModuleWatch watch(recipe_.detect_anomaly ? detect_anomalies() : ModuleFilter());
  at::Tensor logits;  // [answers, classes]
  {
    const ComputeScope scope(compute_);
    logits = forward_(inputs_).to(at::kFloat);
  }
  const at::Tensor loss = make_loss_(logits, labels_);
  expect_trainable(loss);
  graph_before_ = logits.grad_fn();  // the loss's graph holds it too
  const ModuleRunning backward("backward");
  (scale_ ? loss * scale_->factor().squeeze() : loss).backward();
  loss_ = loss.detach();
  return logits.detach().argmax(1).eq(labels_).sum();
}

void TrainingStep::update(const at::Tensor& correct) {
  const at::NoGradGuard no_grad;
  at::Tensor norm = optimizer_.gradient_norm().reshape({1});
  if (scale_) norm = norm / scale_->factor();
  const at::Tensor overflow = one_if(at::isfinite(norm).logical_not());
  at::Tensor failed = one_if(at::isfinite(loss_).logical_not()).reshape({1});
  failed = at::maximum(failed, scale_ ? one_if(scale_->factor() < LossScale::kSmallest) : overflow);

  const at::Tensor now = at::cat({loss_.reshape({1}), norm}).to(at::kDouble);
  latest_.copy_(at::where(failed_ > 0, latest_, now));
  failed_.copy_(at::maximum(failed_, failed));
  const at::Tensor sums =
      at::stack({at::ones({}, totals_.options()), loss_.to(at::kDouble), correct.to(at::kDouble)});
  totals_.add_(at::where(failed_ > 0, at::zeros_like(totals_), sums));

  at::Tensor divisor = at::ones_like(norm);  // of the gradients
  if (recipe_.clip > 0) divisor = (norm / recipe_.clip).clamp_min(1);
  if (scale_) divisor = divisor * scale_->factor();
  optimizer_.step(lr_, divisor, at::maximum(failed_, overflow));
  if (scale_) scale_->update(overflow);
}

void TrainingStep::compute_and_update() { update(propagate()); }

void TrainingStep::record_or_run() {
  if (graph_) return graph_->replay();
  if (may_record_ && plain_steps_ >= kRunsBeforeRecording) {
    try {
      graph_ = gpu_runtime().record([this] { compute_and_update(); });
      return graph_->replay();
    } catch (const DeviceError& error) {
      may_record_ = false;
      if (message_)
        message_(std::string("warning: the training step runs without a CUDA graph: ") +
                 error.what());
    }
  }
  compute_and_update();
  ++plain_steps_;
}

void TrainingStep::run(const at::Tensor& inputs, const at::Tensor& labels, double lr) {
  load(inputs, labels);
  lr_.fill_(lr);
  record_or_run();
}

void TrainingStep::repeat(const at::Tensor& inputs, const at::Tensor& labels) {
  load(inputs, labels);
  propagate();
}

TrainingStep::Reading TrainingStep::read() {
  const at::Tensor all = at::cat({totals_, latest_}).cpu();
  const double* values = all.const_data_ptr<double>();
  // A NaN has a sign, which means nothing and would be printed.
  const auto unsigned_nan = [](double value) { return std::isnan(value) ? std::nan("") : value; };
  totals_.zero_();
  return {static_cast<int64_t>(values[0]), values[1], static_cast<int64_t>(values[2]),
          unsigned_nan(values[3]), unsigned_nan(values[4])};
}

}  // namespace linescan
