#include "linescan/train/doctor/checks.h"

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

}  // namespace linescan
