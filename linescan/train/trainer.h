// The training loop: batches in, updates, evaluations on held-out examples and checkpoints out,
// until the budget is spent or a signal asks to stop.
//
// Every number depends on the configuration, the data and the machine alone (threads and
// instruction set included). Under an epoch budget a run that was interrupted and resumed therefore
// ends with the same bytes as one that was not. Under a minutes budget the clock decides the
// learning rate, so two runs differ.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "linescan/train/average.h"
#include "linescan/train/config.h"
#include "linescan/train/metrics.h"
#include "linescan/train/optimizer.h"
#include "linescan/train/progress.h"
#include "linescan/train/sampler.h"
#include "linescan/train/state.h"
#include "linescan/train/task.h"
#include "linescan/train/training_step.h"
#include "linescan/train/watchdog.h"

namespace linescan {

// A step, an evaluation or a checkpoint that stands still.
struct HangNotice {
  std::string line;              // hang_line() of hang_report.h
  std::filesystem::path report;  // file in the run folder; empty: it could not be written
  bool stop = true;              // as the recipe wants it
};

// How the loop talks to whoever runs it. Empty functions and a null pointer are allowed.
struct TrainingHooks {
  std::function<void(const ProgressFacts&)> progress = {};  // after every step and evaluation
  std::function<void(const std::string&)> message = {};     // something worth a line
  const std::atomic<int>* stop_signal = nullptr;  // not 0: finish the step, save and return
  // Called while the run stands still, by another thread. Whoever wants to stop then must end the
  // process; nothing else ends a kernel or a thread that hangs.
  std::function<void(const HangNotice&)> hang = {};
};

class Trainer {
 public:
  // `config` must be complete (make_task) and valid; `task` must outlive the trainer. Makes the
  // network from the seed; touches no file. Throws InvalidArgument where batch and data do not fit.
  Trainer(const RunConfig& config, const Task& task, TrainingHooks hooks);

  // Begins a new run in its folder, which must exist, with the checkpoint of step 0.
  void start(const std::filesystem::path& run);

  // Goes on in the folder of a run from its last checkpoint, verified first. Later checkpoints and
  // lines of metrics are removed.
  void resume(const std::filesystem::path& run);

  const Compute& compute() const { return compute_; }

  // Trains until the budget is spent (true) or a signal has come (false); in both cases the last
  // step is saved. Throws NotFinite naming the step, the first bad tensor and the last checkpoint,
  // IoError where something cannot be written, DeviceError where memory runs out, and Error for a loss
  // that cannot be trained on or, if the recipe says so, a parameter that gets no gradient; the last
  // checkpoint stays good in all cases.
  bool run();

  const TrainingState& state() const { return state_; }

 private:
  std::filesystem::path checkpoints() const { return run_ / "checkpoints"; }
  bool stopped() const;
  bool budget_spent() const;
  double budget_progress() const;
  bool evaluation_falls_due() const;
  // A batch whose update has been started but not read yet.
  struct Started {
    std::vector<int64_t> indices;
    int64_t epoch;
  };
  Batch make_batch(const Started& batch) const;
  void step();
  void run_step(const Started& batch, double lr);
  void check_first_step();
  void settle();
  void start_watchdog();
  void report_hang(const Hang& hang) const;
  void stop_watching();
  [[noreturn]] void report_out_of_memory(const std::exception& error) const;
  [[noreturn]] void report_non_finite(std::size_t which, const TrainingStep::Reading& reading);
  void log_interval(int64_t epoch, double lr);
  bool evaluate_held_out();
  void save();
  void report_progress() const;

  RunConfig config_;
  Compute compute_;
  const Task& task_;
  TrainingHooks hooks_;
  std::filesystem::path run_;

  Sampler sampler_;
  Network network_;
  Network averaged_;  // empty without EMA
  std::optional<WeightAverage> average_;
  AdamW optimizer_;
  TrainingStep step_;
  std::vector<Started> started_;  // since the last reading
  double latest_norm_ = 0;
  std::optional<MetricsLog> metrics_;
  TrainingState state_;
  ProgressFacts facts_;
  bool checked_ = false;  // the first step of this process
  bool graph_reported_ = false;
  double latest_lr_ = 0;
  std::function<std::string()> gpu_probe_;
  std::unique_ptr<Watchdog> dog_;  // while run() runs, unless switched off
};

}  // namespace linescan
