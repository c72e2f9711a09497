#include "linescan/cli/training_options.h"

#include "linescan/cli/command.h"
#include "linescan/files/toml.h"
#include "linescan/models/networks/image_network.h"

namespace linescan::cli {
namespace {

// A flag that is an option of the recipe or of the network as well.
void add_direct(CLI::App& command, TrainingOptions& options, const char* flag, const char* name,
                const std::string& help) {
  command
      .add_option_function<std::string>(
          flag,
          [&options, name](const std::string& text) { options.direct.emplace_back(name, text); },
          help)
      ->type_name("");
}

// A switch that gives an option a value.
void add_switch(CLI::App& command, TrainingOptions& options, const char* flag, const char* name,
                const char* value, const char* help) {
  command.add_flag_callback(
      flag, [&options, name, value] { options.direct.emplace_back(name, value); }, help);
}

void add_what(CLI::App& command, TrainingOptions& options) {
  add_direct(command, options, "--task", "task",
             "images (default), or synthetic sequences: recall, copying");
  add_direct(command, options, "--data", "data",
             "data set: fashion-mnist (default), or a folder of four IDX files");
  add_direct(command, options, "--model", "model", "name of the network (below)");
  command.add_option("--config", options.config,
                     "TOML file with options, such as a run's config.toml");
  command
      .add_option("--set", options.set,
                  "any option of network or recipe as key=value; may be repeated")
      ->type_name("")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_how(CLI::App& command, TrainingOptions& options) {
  add_direct(command, options, "--minutes", "minutes",
             "budget in minutes of training steps (default 2; 4 for sequences)");
  add_direct(command, options, "--epochs", "epochs", "budget in passes over the training examples");
  command.get_option("--epochs")->excludes("--minutes");
  add_direct(command, options, "--limit-train", "limit_train",
             "use only so many training examples");
  add_direct(command, options, "--lr", "lr", "peak learning rate");
  add_direct(command, options, "--batch", "batch", "images or sequences a step");
  add_direct(command, options, "--seed", "seed", "seed of weights, order and augmentation");
  add_direct(command, options, "--threads", "threads",
             "threads (default: OMP_NUM_THREADS, or one a core)");
  add_direct(command, options, "--device", "device", "cpu (default), cuda or cuda:N");
  add_direct(command, options, "--precision", "precision",
             "fp32 (default), tf32, bf16 or fp16; on the CPU fp32 or bf16");
  add_switch(command, options, "--no-graph", "graph", "false",
             "on a GPU: start every kernel on its own");
}

void add_guards(CLI::App& command, TrainingOptions& options) {
  add_direct(command, options, "--max-grad-norm", "clip",
             "clip gradients to this norm (default 5, sequences 1; 0: never)");
  add_direct(command, options, "--watchdog", "watchdog",
             "most a step may take: medians (10x, default), seconds (90), off");
  add_direct(command, options, "--on-hang", "on_hang",
             "after the report on a hang: stop (default) or continue");
  add_switch(command, options, "--detect-anomaly", "detect_anomaly", "true",
             "name the module that makes a NaN while it does; slower");
  add_switch(command, options, "--fail-on-unused", "fail_on_unused", "true",
             "a parameter without a gradient ends the run (default: a warning)");
  add_switch(command, options, "--log-memory", "log_memory", "true",
             "memory in use with every line of metrics (default)");
  add_switch(command, options, "--no-log-memory", "log_memory", "false", "without it");
}

}  // namespace

Assignments TrainingOptions::collect() const {
  Assignments all;
  if (!config.empty()) all = read_toml_options(config);
  for (const std::string& text : set) all.push_back(parse_assignment(text));
  all.insert(all.end(), direct.begin(), direct.end());
  return all;
}

void add_training_options(CLI::App& command, TrainingOptions& options) {
  add_what(command, options);
  add_how(command, options);
  add_guards(command, options);
}

std::string describe_training_options() {
  RunConfig defaults;
  std::vector<Option> of_sequences = defaults.sequences.options();
  for (const Option& option : defaults.language.options()) of_sequences.push_back(option);
  return "Networks:\n" + wrap_names(image_model_names()) +
         "\nWhat --set and --config can change:\n" + describe_options(defaults.options()) +
         "\nFor recall and copying, in the place of data, model and network:\n" +
         describe_options(of_sequences) + '\n';
}

}  // namespace linescan::cli
