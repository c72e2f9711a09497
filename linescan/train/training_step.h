// One training step: forward, loss, backward, clipping, update.
//
// On a GPU nothing waits for the device: sums for the metrics and the verdict on finite numbers stay
// there until read(), and after the first steps the whole step is recorded as a CUDA graph. An update
// that would bring NaN or infinity into the weights is left out, and so are all after it, so that the
// step in question can be repeated.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "linescan/binding/gpu_runtime.h"
#include "linescan/models/compute.h"
#include "linescan/train/loss_scale.h"
#include "linescan/train/optimizer.h"
#include "linescan/train/recipe.h"

namespace linescan {

class TrainingStep {
 public:
  // Inputs of a batch -> logits [answers, classes] of the network that the optimizer updates.
  using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;

  // Recipe and optimizer must outlive the step. `message` hears when the step cannot be recorded.
  TrainingStep(const Recipe& recipe, const Compute& compute, Forward forward, AdamW& optimizer,
               std::function<void(const std::string&)> message = {});

  // What the network takes, and labels [answers] int64 with -100 where nothing is asked, on the CPU;
  // one batch size for all steps.
  void run(const at::Tensor& inputs, const at::Tensor& labels, double lr);

  // Forward and backward alone: the gradients of a step, its update left out.
  void repeat(const at::Tensor& inputs, const at::Tensor& labels);

  // What the steps since the last reading came to. Waits for the device.
  struct Reading {
    int64_t good_steps = 0;  // less than there were: the next one was bad
    double loss_sum = 0;     // of the good steps, as the next one
    int64_t correct = 0;
    double loss = 0, norm = 0;  // of the last good step, or of the first bad one
  };
  Reading read();

  // Empty unless the precision is fp16.
  std::optional<LossScale>& loss_scale() { return scale_; }

 private:
  void load(const at::Tensor& inputs, const at::Tensor& labels);
  at::Tensor propagate();  // -> number of right answers; loss_ and the gradients are set
  void compute_and_update();
  void update(const at::Tensor& correct);
  void record_or_run();

  const Recipe& recipe_;
  Compute compute_;
  Forward forward_;
  AdamW& optimizer_;
  std::function<void(const std::string&)> message_;
  std::optional<LossScale> scale_;

  at::Tensor inputs_, labels_;  // a graph reads them where they are
  at::Tensor lr_;               // [], float32 on a GPU as the fused kernel wants it, else float64
  at::Tensor loss_;
  at::Tensor totals_;  // float64 [3]: good steps, their losses, their right answers
  at::Tensor latest_;  // float64 [2]: loss and norm
  at::Tensor failed_;  // float32 [1]: 1 from the first bad step on

  bool may_record_;
  int64_t plain_steps_ = 0;
  std::unique_ptr<RecordedWork> graph_;
};

}  // namespace linescan
