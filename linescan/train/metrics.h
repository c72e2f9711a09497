// What a run tells about itself while it trains: metrics.jsonl (one JSON object a line) and the
// same numbers as TensorBoard events.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "linescan/train/tensorboard.h"

namespace linescan {

// Means over the steps since the line before, the last step of them included.
struct TrainMetrics {
  int64_t step = 0;   // updates done
  int64_t epoch = 0;  // the epoch of the last step, from 0
  double loss = 0;
  double accuracy = 0;                       // 0..1, on augmented images, or of all answers
  double lr = 0;                             // of the last step
  double images_per_s = 0;                   // or whatever the examples are
  double grad_norm = 0;                      // of the last step, before clipping
  double seconds = 0;                        // of training steps since the start of the run
  std::optional<int64_t> memory_bytes = {};  // of the process, or of the GPU's tensors
};

// On the held-out examples.
struct HeldOutMetrics {
  int64_t step = 0;
  int64_t epoch = 0;  // epochs completed
  double seconds = 0;
  double loss = 0, top1 = 0, top5 = 0;
  std::optional<double> ema_top1;  // of the averaged weights
};

class MetricsLog {
 public:
  // Opens run/metrics.jsonl. `last_step` is the step at which the run goes on: lines after it, and a
  // line that a killed process left unfinished, are dropped; so is an evaluation of that very step
  // if it will be made again. Throws IoError.
  MetricsLog(const std::filesystem::path& run, int64_t last_step, bool evaluation_due = false);

  void write(const TrainMetrics& metrics);
  void write(const HeldOutMetrics& metrics);

 private:
  void write_line(const nlohmann::json& line);

  std::filesystem::path path_;
  std::ofstream file_;
  EventWriter events_;
};

}  // namespace linescan
