// GPUs and what work costs on them at least, for device and plan.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "linescan/device/gpu.h"

namespace linescan::cli {

// Every figure of the description under its name, and whether this build has code for the device.
nlohmann::json to_json(const Gpu& gpu);

// The same in words, without the name; each piece fits a line of 66 columns.
std::vector<std::string> describe_gpu(const Gpu& gpu);

// The time that the device needs at least: for moving the bytes at the speed of its memory, and for
// computing the exponentials at the rate of its special-function units.
struct GpuFloor {
  double memory_seconds, exponential_seconds;
  bool memory_decides() const { return memory_seconds > exponential_seconds; }
  double seconds() const { return memory_decides() ? memory_seconds : exponential_seconds; }
};
GpuFloor floor_on(const Gpu& gpu, int64_t bytes, int64_t exponentials);

}  // namespace linescan::cli
