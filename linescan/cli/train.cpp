// linescan train: a network from data to a run folder with its report.

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/files/toml.h"
#include "linescan/models/networks/registry.h"
#include "linescan/train/progress.h"
#include "linescan/train/session.h"

namespace linescan::cli {
namespace {

struct TrainOptions {
  Assignments direct;  // options that have a flag of their own
  std::vector<std::string> set;
  std::string config, run;
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

// The file first, --set over it, flags over both.
Assignments collect(const TrainOptions& options) {
  Assignments all;
  if (!options.config.empty()) all = read_toml_options(options.config);
  for (const std::string& text : options.set) all.push_back(parse_assignment(text));
  all.insert(all.end(), options.direct.begin(), options.direct.end());
  return all;
}

void train(const TrainOptions& options) {
  SessionRequest request;
  request.options = collect(options);
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

// A flag that is an option of the recipe or of the network as well.
void add_direct(CLI::App& command, const std::shared_ptr<TrainOptions>& options, const char* flag,
                const char* name, const std::string& help) {
  command
      .add_option_function<std::string>(
          flag,
          [options, name](const std::string& text) { options->direct.emplace_back(name, text); },
          help)
      ->type_name("");
}

}  // namespace

void add_train(CLI::App& command) {
  const auto options = std::make_shared<TrainOptions>();
  add_direct(command, options, "--task", "task",
             "images (default), or synthetic sequences: recall, copying");
  add_direct(command, options, "--data", "data",
             "data set: fashion-mnist (default), or a folder of four IDX files");
  add_direct(command, options, "--model", "model", "name of the network (below)");
  command.add_option("--config", options->config,
                     "TOML file with options, such as a run's config.toml");
  command
      .add_option("--set", options->set,
                  "any option of network or recipe as key=value; may be repeated")
      ->type_name("")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_direct(command, options, "--minutes", "minutes",
             "budget in minutes of training steps (default 2; 4 for sequences)");
  add_direct(command, options, "--epochs", "epochs", "budget in passes over the training examples");
  command.get_option("--epochs")->excludes("--minutes");
  add_direct(command, options, "--limit-train", "limit_train",
             "use only so many training examples");
  add_direct(command, options, "--lr", "lr", "peak learning rate");
  add_direct(command, options, "--batch", "batch", "images or sequences a step");
  add_direct(command, options, "--seed", "seed", "seed of weights, order and augmentation");
  add_direct(command, options, "--threads", "threads", "threads (default: one a core)");
  add_direct(command, options, "--device", "device", "cpu (default), cuda or cuda:N");
  add_direct(command, options, "--precision", "precision",
             "fp32 (default), tf32, bf16 or fp16; on the CPU fp32 or bf16");
  command.add_flag_callback(
      "--no-graph", [options] { options->direct.emplace_back("graph", "false"); },
      "on a GPU: start every kernel of a step on its own");
  command.add_option("--run", options->run,
                     "run folder (default: the next of runs/001, runs/002, ...)");
  command.add_flag("--resume", options->resume,
                   "go on with the run in --run from its last checkpoint");
  RunConfig defaults;
  std::vector<Option> of_sequences = defaults.sequences.options();
  for (const Option& option : defaults.language.options()) of_sequences.push_back(option);
  command.footer("Networks:\n" + wrap_names(model_names()) +
                 "\nWhat --set and --config can change:\n" + describe_options(defaults.options()) +
                 "\nFor recall and copying, in the place of data, model and network:\n" +
                 describe_options(of_sequences) + '\n');
  add_example(command,
              "linescan train --data fashion-mnist --minutes 2 --run runs/first\n"
              "  linescan train --run runs/first --resume\n"
              "  linescan train --device cuda --precision bf16 --minutes 1\n"
              "  linescan train --task recall --run runs/recall");
  command.callback([options] { train(*options); });
}

}  // namespace linescan::cli
