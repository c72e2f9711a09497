// Where a training run stands: everything that is not a tensor, as it goes into state.json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "linescan/train/sampler.h"

namespace linescan {

struct TrainingState {
  int64_t step = 0;  // updates done
  SamplerPosition sampler;
  double seconds = 0;           // of training steps
  double progress = 0;          // share of the budget spent, 0..1
  bool evaluation_due = false;  // an evaluation of this step was cut off by a signal

  // The most accurate evaluation so far; -1 before the first.
  double best_top1 = -1;
  int64_t best_step = -1;
  bool use_average = false;  // the averaged weights did at least as well in the last evaluation

  // Sums since the last line of metrics, kept so that a resumed run logs the same means.
  struct Interval {
    int64_t steps = 0;
    int64_t correct = 0;
    double loss = 0;
    double seconds = 0;
  } interval;

  std::vector<uint8_t> rng;         // PyTorch's CPU generator
  std::vector<uint8_t> device_rng;  // the GPU's, which draws dropped paths there; empty on the CPU

  // fp16 only, 0 otherwise: the factor of the loss, and the good steps since it last grew.
  double loss_scale = 0;
  int64_t loss_scale_steps = 0;

  // On what the run computes; another value makes the numbers differ in their last bits.
  int64_t threads = 0;
  std::string instruction_set;
  std::string device = "cpu";  // or the GPU's name
  std::string precision = "fp32";
  std::string version;
};

nlohmann::json to_json(const TrainingState& state);

// Throws InvalidArgument where something is missing or of another type; `who` names the file.
TrainingState state_from_json(const nlohmann::json& object, const std::string& who);

}  // namespace linescan
