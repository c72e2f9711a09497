// The training doctor: the checks one after the other on a configuration, with a watchdog behind them.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "linescan/train/config.h"
#include "linescan/train/doctor/checkup.h"
#include "linescan/train/doctor/patient.h"
#include "linescan/train/task.h"
#include "linescan/train/watchdog.h"

namespace linescan {

struct DoctorSettings {
  Examination examination = {};
  std::vector<std::string> only = {};              // checks by name; none: all
  std::function<void(const Finding&)> found = {};  // hears of every finding as it comes
  // Called by another thread when a module stands still: the checkup so far, with that as its last
  // finding. Whoever wants to stop then must end the process.
  std::function<void(const Checkup&)> hang = {};
};

// Seconds that a module may take where the recipe's watchdog counts medians, which are those of a step.
inline constexpr double kPatientSeconds = 600;

// How long a module may take: the recipe's seconds, kPatientSeconds; nothing if its watchdog is off.
std::optional<WatchdogSettings> patience_of(const Recipe& recipe);

// Examines a task. Errors of the network are findings; throws InvalidArgument for an unknown check, and as
// the device does.
Checkup examine(const RunConfig& config, const Task& task, const DoctorSettings& settings);

// The same from options, as `linescan train` takes them; data that cannot be read are a finding.
Checkup examine(const Assignments& options, const DoctorSettings& settings);

}  // namespace linescan
