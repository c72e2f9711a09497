#include "linescan/train/doctor/checks.h"

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"

namespace linescan {

std::span<const Check> checks() {
  // What explains the others comes first; what takes longest comes last.
  static constexpr Check kChecks[] = {
      {"versions", "do program, libraries, driver and device fit together?", check_versions},
      {"host", "memory, files, disk, and who waits for whom?", check_host},
      {"values", "are inputs, labels and parameters finite and in range?", check_values},
      {"loss", "one number, with a gradient, no worse than guessing?", check_loss},
      {"reach", "does every parameter receive a gradient?", check_reach},
      {"anomaly", "which module makes a NaN, forward or backward?", check_anomaly},
      {"gradients", "do they explode at the recipe's learning rate?", check_gradients},
      {"memory", "does a step leave something behind?", check_memory},
      {"guards", "what do watchdog, records and metrics cost?", check_guards},
      {"operators", "do their gradients agree with differences?", check_operators},
      {"bisection", "which is the first module with which a step fails?", check_bisection},
  };
  return kChecks;
}

std::vector<Check> checks_named(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const Check& check : checks()) known.emplace_back(check.name);
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw InvalidArgument(unknown_name("check", name, known));
  std::vector<Check> result;
  for (const Check& check : checks())
    if (names.empty() || std::find(names.begin(), names.end(), check.name) != names.end())
      result.push_back(check);
  return result;
}

}  // namespace linescan
