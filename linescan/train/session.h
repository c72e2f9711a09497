// A training run from its configuration to its report, and going on with one that was cut off.
#pragma once

#include <filesystem>
#include <optional>

#include "linescan/train/config.h"
#include "linescan/train/trainer.h"

namespace linescan {

struct SessionRequest {
  Assignments options;                       // config.h; data and model among them
  std::optional<std::filesystem::path> run;  // none: the next of runs/001, runs/002, ...
  bool resume = false;
};

enum class SessionEnd { kFinished, kStopped, kWasFinished };

struct SessionResult {
  std::filesystem::path run;
  SessionEnd end = SessionEnd::kFinished;
  double test_top1 = 0;  // if finished
};

// Trains, evaluates the best checkpoint on the test examples, and writes the files of the run folder:
// config.toml, machine.json, metrics.jsonl, events, checkpoints/, evaluation.json, summary.json,
// report.html. A new run makes its folder only after everything else about it has been checked.
// Sets the number of threads of the process. Throws InvalidArgument, IoError and NotFinite as the
// parts do.
SessionResult run_session(const SessionRequest& request, const TrainingHooks& hooks);

}  // namespace linescan
