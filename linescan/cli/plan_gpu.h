// The half of `linescan plan` that is about GPUs.
#pragma once

#include <string>

#include "linescan/ops/selective_scan/plan.h"
#include "linescan/ops/ss2d/plan.h"

namespace linescan::cli {

// Prints the plans of both passes on the device (find_gpu), what they cost at least, and the device:
// as text, or as one JSON document.
void print_gpu_plans(const SelectiveScanSize& size, const std::string& device, bool json);
void print_gpu_plans(const Ss2dSize& size, const std::string& device, bool json);

}  // namespace linescan::cli
