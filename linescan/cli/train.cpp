// linescan train: a network from data to a run folder with its report.

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/cli/training_options.h"
#include "linescan/train/progress.h"
#include "linescan/train/session.h"

namespace linescan::cli {
namespace {

struct TrainOptions {
  TrainingOptions training;
  std::string run;
  bool resume = false;
};

std::atomic<int> received_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may not wait");

// The first SIGINT or SIGTERM lets the step end and saves; a second one kills, as it always did.
void catch_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { received_signal = signal; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

// A run that stands still cannot be ended in good order; the last checkpoint stays as it is.
void report_hang(const HangNotice& notice) {
  const std::string report = notice.report.empty()
                                 ? "no report: the run folder cannot be written to"
                                 : "see " + notice.report.string();
  std::cerr << fmt::format("\nlinescan: train: {}; {}\n", notice.line, report) << std::flush;
  if (notice.stop) std::_Exit(kHung);
}

void train(const TrainOptions& options) {
  SessionRequest request;
  request.options = options.training.collect();
  if (!options.run.empty()) request.run = options.run;
  request.resume = options.resume;

  Progress progress(std::cerr, terminal_of(STDERR_FILENO));
  ProgressFacts facts;
  bool trained = false;
  TrainingHooks hooks;
  hooks.progress = [&](const ProgressFacts& now) {
    trained = true;
    progress.update(facts = now);
  };
  hooks.message = [&](const std::string& text) { progress.message(text); };
  hooks.stop_signal = &received_signal;
  hooks.hang = report_hang;
  catch_signals();
  const SessionResult result = run_session(request, hooks);
  if (trained) progress.finish(facts);

  const std::string run = result.run.string();
  if (result.end == SessionEnd::kStopped) {
    progress.message(fmt::format("stopped at step {}; 'linescan train --run {} --resume' goes on",
                                 facts.step, run));
    throw Interrupted{received_signal};
  }
  if (result.end == SessionEnd::kWasFinished)
    std::cout << fmt::format("{} is finished already, nothing to resume\n", run);
  else
    std::cout << fmt::format("test accuracy {:.2f} %\n", 100 * result.test_top1);
  std::cout << fmt::format("run folder    {}\nreport        {}/report.html\n", run, run);
}

}  // namespace

void add_train(CLI::App& command) {
  const auto options = std::make_shared<TrainOptions>();
  add_training_options(command, options->training);
  command.add_option("--run", options->run,
                     "run folder (default: the next of runs/001, runs/002, ...)");
  command.add_flag("--resume", options->resume,
                   "go on with the run in --run from its last checkpoint");
  command.footer(describe_training_options());
  add_example(command,
              "linescan train --data fashion-mnist --minutes 2 --run runs/first\n"
              "  linescan train --run runs/first --resume\n"
              "  linescan train --device cuda --precision bf16 --minutes 1\n"
              "  linescan train --task recall --run runs/recall");
  command.callback([options] { train(*options); });
}

}  // namespace linescan::cli
