// The options that say what is trained and how: of `train`, which does it, and of `doctor`, which looks
// whether it would go well.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "linescan/train/config.h"

namespace linescan::cli {

struct TrainingOptions {
  Assignments direct;  // options that have a flag of their own
  std::vector<std::string> set;
  std::string config;

  // The file first, --set over it, flags over both. Throws as the parts do.
  Assignments collect() const;
};

// `options` must live as long as the command.
void add_training_options(CLI::App& command, TrainingOptions& options);

// For the help: the names of networks, and what --set and --config can change.
std::string describe_training_options();

}  // namespace linescan::cli
