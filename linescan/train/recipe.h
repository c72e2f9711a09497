// How a network is trained: every number of it, with the default that suits a small network on
// small images, a few minutes of training.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linescan/base/options.h"

namespace linescan {

struct Recipe {
  // Budget: the one that is not 0. Minutes count training steps alone, not evaluation or saving.
  int64_t epochs = 0;
  double minutes = 0;
  int64_t batch = 128;
  int64_t limit_train = 0;  // use only so many training images; 0 = all
  int64_t seed = 1;
  int64_t threads = 0;  // 0 = OMP_NUM_THREADS, or one a core

  // Where and in which numbers (linescan/models/compute.h); a run may go on elsewhere.
  std::string device = "cpu";
  std::string precision = "fp32";
  bool graph = true;  // on a GPU: record the step, and evaluation, once and start them as a whole

  // AdamW under a linear warm-up and a cosine.
  double lr = 3e-3;
  double warmup = 0.08;    // share of the budget
  double final_lr = 0.01;  // last learning rate as a share of lr
  double weight_decay = 0.05;
  bool decay_marks = true;  // no decay on parameters that the network marks (A_logs, Ds)
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double clip = 5;  // largest global norm of the gradient; 0 = no clipping
  double label_smoothing = 0;
  double ema = 0.998;  // decay of the averaged weights; 0 = none

  // Augmentation.
  bool flip = true;
  int64_t shift = 1;  // pixels

  // Book-keeping; none of these changes the weights.
  int64_t eval_every = 1;    // epochs
  int64_t keep = 3;          // checkpoints kept besides last and best
  int64_t log_every = 20;    // steps
  double save_minutes = 10;  // a checkpoint at least so often, besides those after an evaluation

  // Guards; none of these changes the weights either.
  std::string watchdog = "10x";  // what a step may take: medians ("10x") or seconds ("90"); "off"
  std::string on_hang = "stop";  // or "continue"
  bool detect_anomaly = false;   // name the module that makes a NaN while it does (anomaly.h)
  bool fail_on_unused = false;   // a parameter that gets no gradient is an error, not a warning
  bool log_memory = true;        // with every line of metrics

  std::vector<Option> options();

  // Throws InvalidArgument naming the option, its value and what is allowed.
  void validate() const;
};

}  // namespace linescan
