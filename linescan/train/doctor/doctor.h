// The training doctor: the checks one after the other on a configuration, with a watchdog behind them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "linescan/train/config.h"
#include "linescan/train/doctor/checkup.h"
#include "linescan/train/doctor/patient.h"
#include "linescan/train/task.h"

namespace linescan {

struct DoctorSettings {
  Examination examination = {};
  std::vector<std::string> only = {};              // checks by name; none: all
  std::function<void(const Finding&)> found = {};  // hears of every finding as it comes
  // Called by another thread when a module stands still: the checkup so far, with that as its last
  // finding. Whoever wants to stop then must end the process.
  std::function<void(const Checkup&)> hang = {};
};

// Seconds that a module may take, unless the recipe's watchdog is given in seconds.
inline constexpr double kPatientSeconds = 600;

// Examines a task. Errors of the network are findings; throws InvalidArgument for an unknown check, and as
// the device does.
Checkup examine(const RunConfig& config, const Task& task, const DoctorSettings& settings);

// The same from options, as `linescan train` takes them; data that cannot be read are a finding.
Checkup examine(const Assignments& options, const DoctorSettings& settings);

}  // namespace linescan
