// Faults on purpose: a small run on small data, trained well for a few steps, in which one fault is then
// planted. Shows what training says about it, that the last checkpoint is untouched, and what the doctor
// finds.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>

#include "linescan/train/doctor/doctor.h"

namespace linescan {

struct Fault {
  const char* name;  // "nan-input"
  const char* what;  // for the help
};
std::span<const Fault> faults();

struct PlantSettings {
  DoctorSettings doctor;
  // What the program would end with, for the finding on the training; empty: not said.
  std::function<int(const std::exception&)> exit_code;
  int hang_code = 0;
};

// Findings "training" and "checkpoint", then those of the doctor. Works in a temporary folder, which stays
// if there is a report on a hang in it. With a fault that hangs, settings.doctor.hang is called with what
// is known by then; if it returns, planted sleep ends. Throws InvalidArgument for an unknown fault or
// check, Unsupported for one that needs a GPU where there is none.
Checkup run_plant(const std::string& fault, const PlantSettings& settings);

}  // namespace linescan
