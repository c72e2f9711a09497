#include "linescan/train/recipe.h"

#include <cmath>

#include "linescan/base/error.h"
#include "linescan/models/compute.h"
#include "linescan/train/watchdog.h"

namespace linescan {

std::vector<Option> Recipe::options() {
  return {
      {"epochs", &epochs, "budget in passes over the training examples"},
      {"minutes", &minutes, "budget in minutes of training steps"},
      {"batch", &batch, "examples a step"},
      {"limit_train", &limit_train, "use only so many training examples (0: all)"},
      {"seed", &seed, "seed of weights, order and augmentation"},
      {"threads", &threads, "threads (0: OMP_NUM_THREADS, or one a core)"},
      {"device", &device, "cpu, cuda or cuda:N"},
      {"precision", &precision, "fp32, tf32, bf16 or fp16; on the CPU fp32 or bf16"},
      {"graph", &graph, "on a GPU: record the step, and evaluation, as CUDA graphs"},
      {"lr", &lr, "peak learning rate"},
      {"warmup", &warmup, "share of the budget in which the learning rate rises"},
      {"final_lr", &final_lr, "learning rate at the end, as a share of lr"},
      {"weight_decay", &weight_decay, "AdamW's weight decay"},
      {"decay_marks", &decay_marks, "no decay on the parameters that the network marks"},
      {"beta1", &beta1, "AdamW's average of gradients"},
      {"beta2", &beta2, "AdamW's average of squared gradients"},
      {"eps", &eps, "AdamW's floor under the root"},
      {"clip", &clip, "largest global gradient norm (0: no clipping)"},
      {"label_smoothing", &label_smoothing, "share of the target spread over all classes"},
      {"ema", &ema, "decay of the averaged weights (0: none)"},
      {"flip", &flip, "mirror half of the training images"},
      {"shift", &shift, "move training images by up to so many pixels"},
      {"eval_every", &eval_every, "epochs between evaluations on held-out examples"},
      {"keep", &keep, "checkpoints kept besides last and best"},
      {"log_every", &log_every, "steps between lines of metrics"},
      {"save_minutes", &save_minutes, "minutes after which a checkpoint is written anyway"},
      {"watchdog", &watchdog, "what a step may take: medians (10x), seconds (90), or off"},
      {"on_hang", &on_hang, "what follows the report on a hang: stop or continue"},
      {"detect_anomaly", &detect_anomaly, "name the module that makes a NaN; takes longer"},
      {"fail_on_unused", &fail_on_unused, "stop if a parameter gets no gradient"},
      {"log_memory", &log_memory, "memory in use with every line of metrics"},
  };
}

namespace {

void require(bool good, const char* name, double value, const char* expected) {
  // A NaN fails every comparison, so `good` is false for it as well.
  if (!good) throw_error<InvalidArgument>("recipe: {} is {}, expected {}", name, value, expected);
}

}  // namespace

void Recipe::validate() const {
  require(epochs >= 0, "epochs", epochs, "at least 1");
  require(minutes >= 0 && std::isfinite(minutes), "minutes", minutes, "a positive number");
  if ((epochs > 0) == (minutes > 0))
    throw_error<InvalidArgument>(
        "recipe: epochs is {} and minutes is {}, expected exactly one of them above 0", epochs,
        minutes);
  require(batch >= 1, "batch", batch, "at least 1");
  require(limit_train >= 0, "limit_train", limit_train, "0 or more");
  require(seed >= 0, "seed", seed, "0 or more");
  require(threads >= 0 && threads <= 1024, "threads", threads, "0 to 1024");
  parse_precision(precision);
  require(lr > 0 && std::isfinite(lr), "lr", lr, "a positive number");
  require(warmup >= 0 && warmup < 1, "warmup", warmup, "0 <= warmup < 1");
  require(final_lr >= 0 && final_lr <= 1, "final_lr", final_lr, "0 to 1");
  require(weight_decay >= 0 && std::isfinite(weight_decay), "weight_decay", weight_decay,
          "0 or more");
  require(beta1 >= 0 && beta1 < 1, "beta1", beta1, "0 <= beta1 < 1");
  require(beta2 >= 0 && beta2 < 1, "beta2", beta2, "0 <= beta2 < 1");
  require(eps > 0 && std::isfinite(eps), "eps", eps, "a positive number");
  require(clip >= 0 && std::isfinite(clip), "clip", clip, "0 or more");
  require(label_smoothing >= 0 && label_smoothing < 1, "label_smoothing", label_smoothing,
          "0 <= label_smoothing < 1");
  require(ema >= 0 && ema < 1, "ema", ema, "0 <= ema < 1");
  require(shift >= 0 && shift <= 1024, "shift", shift, "0 to 1024");
  require(eval_every >= 1, "eval_every", eval_every, "at least 1");
  require(keep >= 1, "keep", keep, "at least 1");
  require(log_every >= 1, "log_every", log_every, "at least 1");
  require(save_minutes > 0, "save_minutes", save_minutes, "a positive number");
  parse_watchdog(watchdog);
  if (on_hang != "stop" && on_hang != "continue")
    throw_error<InvalidArgument>("recipe: on_hang is '{}', expected stop or continue", on_hang);
}

}  // namespace linescan
