// The checks of the training doctor, in the order in which they run. Each makes what it needs from the
// patient and leaves nothing behind; what it throws is a finding too (doctor.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "linescan/train/doctor/checkup.h"
#include "linescan/train/doctor/patient.h"

namespace linescan {

struct Check {
  const char* name;
  const char* question;  // for the help
  Finding (*run)(const Patient& patient);
};

std::span<const Check> checks();

// Those of these names, in the order of checks(); all, if there are none. Throws InvalidArgument for an
// unknown one.
std::vector<Check> checks_named(const std::vector<std::string>& names);

Finding check_values(const Patient& patient);
Finding check_loss(const Patient& patient);
Finding check_reach(const Patient& patient);
Finding check_anomaly(const Patient& patient);
Finding check_gradients(const Patient& patient);
Finding check_guards(const Patient& patient);
Finding check_operators(const Patient& patient);
Finding check_memory(const Patient& patient);
Finding check_host(const Patient& patient);
Finding check_versions(const Patient& patient);
Finding check_bisection(const Patient& patient);

}  // namespace linescan
