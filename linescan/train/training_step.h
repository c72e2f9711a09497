// One training step: forward, loss, backward, clipping, update.
//
// On a GPU nothing waits for the device: sums for the metrics and the verdict on finite numbers stay
// there until read(), and after the first steps the whole step is recorded as a CUDA graph. An update
// that would bring NaN or infinity into the weights is left out, and so are all after it, so that the
// step in question can be repeated.
#pragma once

#include <torch/csrc/autograd/function.h>

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
  using Loss = std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels)>;

  // Recipe and optimizer must outlive the step. `message` hears when the step cannot be recorded. No
  // `loss` means cross_entropy().
  TrainingStep(const Recipe& recipe, const Compute& compute, Forward forward, AdamW& optimizer,
               std::function<void(const std::string&)> message = {}, Loss loss = {});

  // The mean over the labels that are not kNothingAsked, smoothed as the recipe says.
  static Loss cross_entropy(const Recipe& recipe);
  // Throws Error unless the loss is one number that a backward pass can start from.
  static void expect_trainable(const at::Tensor& loss);

  // What the network takes, and labels [answers] int64 with kNothingAsked where nothing is, on the CPU;
  // one batch size for all steps.
  void run(const at::Tensor& inputs, const at::Tensor& labels, double lr);

  // Forward and backward alone: the gradients of a step, its update left out.
  void repeat(const at::Tensor& inputs, const at::Tensor& labels);

  // Whether the graph of the step before was still alive when the last one began: something holds its
  // loss or logits, and what they hold grows with every step. Not known of recorded steps.
  bool graph_kept() const { return graph_kept_; }

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
  void expect_finite_inputs() const;
  void compute_and_update();
  void update(const at::Tensor& correct);
  void record_or_run();

  const Recipe& recipe_;
  Compute compute_;
  Forward forward_;
  AdamW& optimizer_;
  std::function<void(const std::string&)> message_;
  Loss make_loss_;
  std::optional<LossScale> scale_;

  at::Tensor inputs_, labels_;  // a graph reads them where they are
  at::Tensor lr_;               // [], float32 on a GPU as the fused kernel wants it, else float64
  at::Tensor loss_;
  at::Tensor totals_;  // float64 [3]: good steps, their losses, their right answers
  at::Tensor latest_;  // float64 [2]: loss and norm
  at::Tensor failed_;  // float32 [1]: 1 from the first bad step on

  std::weak_ptr<torch::autograd::Node> graph_before_;
  bool graph_kept_ = false;

  bool may_record_;
  int64_t plain_steps_ = 0;
  std::unique_ptr<RecordedWork> graph_;
};

}  // namespace linescan
