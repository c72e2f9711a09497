// linescan doctor: what stands in the way of a training run, as a checklist; and planted faults, to see
// what the list looks like then.

#include "linescan/train/doctor/doctor.h"

#include <fmt/format.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "linescan/cli/command.h"
#include "linescan/cli/training_options.h"
#include "linescan/files/toml.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/doctor/plant.h"

namespace linescan::cli {
namespace {

struct DoctorOptions {
  TrainingOptions training;
  std::vector<std::string> only;
  std::string plant, run;
  Examination examination;
  bool json = false;
};

void print(const Checkup& checkup, bool json) {
  if (json)
    print_json(to_json(checkup));
  else
    std::cout << to_text(checkup);
  std::cout << std::flush;
}

// Those of the run, if there is one, and what is said over them.
Assignments collect(const DoctorOptions& options) {
  Assignments all;
  if (!options.run.empty())
    all = read_toml_options(std::filesystem::path(options.run) / "config.toml");
  const Assignments more = options.training.collect();
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A planted fault has a small run of its own: what is said about another one would not be read.
void expect_no_run(const DoctorOptions& options) {
  const TrainingOptions& given = options.training;
  std::string option;
  if (options.examination.folder != Examination().folder)
    option = "--folder " + options.examination.folder.string();
  if (!options.run.empty()) option = "--run " + options.run;
  if (!given.config.empty()) option = "--config " + given.config;
  if (!given.set.empty()) option = "--set " + given.set.front();
  if (!given.direct.empty())
    option = fmt::format("{}={}", given.direct.front().first, given.direct.front().second);
  if (!option.empty())
    throw_error<InvalidArgument>(
        "doctor: --plant has a run of its own, expected no options of another, got {}", option);
}

Checkup examine_or_plant(const DoctorOptions& options, const DoctorSettings& settings) {
  if (options.plant.empty()) return examine(collect(options), settings);
  return run_plant(options.plant,
                   {.doctor = settings, .exit_code = exit_code_of, .hang_code = kHung});
}

void run_doctor(const DoctorOptions& options) {
  if (!options.plant.empty()) expect_no_run(options);
  const int64_t steps = options.examination.steps;
  if (steps < 1 || steps > 1000)
    throw_error<InvalidArgument>("doctor: steps is {}, expected 1 to 1000", steps);
  DoctorSettings settings{.examination = options.examination, .only = options.only};
  if (!options.run.empty()) settings.examination.checkpoint = find_checkpoint(options.run, "last");
  settings.found = [](const Finding& finding) {
    std::cerr << fmt::format("{}: {}\n", finding.check, name_of(finding.grade)) << std::flush;
  };
  settings.hang = [&](const Checkup& checkup) {  // the thread that hangs cannot be ended otherwise
    print(checkup, options.json);
    std::_Exit(kHung);
  };
  const Checkup checkup = examine_or_plant(options, settings);
  print(checkup, options.json);
  if (checkup.failed()) throw FoundBad();
}

std::string describe_names() {
  std::string text = "Checks:\n";
  for (const Check& check : checks())
    text += fmt::format("  {:<20}{}\n", check.name, check.question);
  text += "\nFaults for --plant:\n";
  for (const Fault& fault : faults()) text += fmt::format("  {:<20}{}\n", fault.name, fault.what);
  return text +
         "\nNetworks, and what --set and --config can change: linescan train --help\n"
         "A run's config.toml may say more than the checks read, such as its budget.\n"
         "\nExit codes: 0 nothing failed, 1 a check failed, 2 bad options, 4 a hang\n\n";
}

// Options of `train` that say nothing to a checkup: it trains nothing, records no graph, looks for
// anomalies and unused parameters anyway, and ends when something hangs.
constexpr const char* kUnread[] = {"--minutes",    "--epochs",         "--no-graph",
                                   "--on-hang",    "--detect-anomaly", "--fail-on-unused",
                                   "--log-memory", "--no-log-memory"};

void add_options_of_train(CLI::App& command, TrainingOptions& options) {
  add_training_options(command, options);
  for (const char* unread : kUnread) command.get_option(unread)->group("");
  command.get_option("--watchdog")
      ->description("most for a module: seconds (90) or off; medians count as 600 s");
}

void expect_read(const CLI::App& command) {
  for (const char* unread : kUnread)
    if (command.count(unread) > 0)
      throw_error<InvalidArgument>(
          "doctor: no check reads {}, expected it with 'linescan train' only", unread);
}

}  // namespace

void add_doctor(CLI::App& command) {
  const auto options = std::make_shared<DoctorOptions>();
  add_options_of_train(command, options->training);
  command.add_option("--only", options->only, "these checks (below) only")
      ->type_name("CHECK")
      ->delimiter(',');
  add_number(command, "--steps", options->examination.steps, "steps of every trial (default 6)");
  command
      .add_option("--folder", options->examination.folder,
                  "where checkpoints would go (default: here)")
      ->type_name("");
  command.add_option("--run", options->run, "folder of a run: its options and its last weights")
      ->type_name("");
  command
      .add_option("--plant", options->plant,
                  "show what a fault (below) does to a small run, and what is found")
      ->type_name("FAULT");
  command.add_flag("--json", options->json, "one JSON document on standard output");
  command.footer(describe_names());
  add_example(command,
              "linescan doctor --data fashion-mnist --lr 0.01\n"
              "  linescan doctor --run runs/first --only gradients,memory\n"
              "  linescan doctor --plant nan-input");
  command.callback([options, &command] {
    expect_read(command);
    run_doctor(*options);
  });
}

}  // namespace linescan::cli
