// The half of `linescan plan` that is about GPUs.
#pragma once

#include <string>

#include "linescan/cli/shape_options.h"

namespace linescan::cli {

// Prints the problem, the plans of both passes on the device (find_gpu), what they cost at least, and the
// device: as text, or as one JSON document. Of ss2d also the plans of the scans that the operator for LibTorch
// runs instead, where it does. What does not fit the device's shared memory or memory is said there, and
// FoundBad thrown at the end. Throws Unsupported for float64, for sizes that GPUs cannot count and where neither
// pass fits.
void print_gpu_plans(const ScanShape& shape, const std::string& device, bool json);
void print_gpu_plans(const Ss2dShape& shape, const std::string& device, bool json);
void print_gpu_plans(const RuleShape& shape, const std::string& device, bool json);
void print_gpu_plans(const ConvShape& shape, const std::string& device, bool json);
void print_gpu_plans(const NormShape& shape, const std::string& device, bool json);
void print_gpu_plans(const PlaneConvShape& shape, const std::string& device, bool json);

}  // namespace linescan::cli
