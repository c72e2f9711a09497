// What a plan of selective_scan on a GPU is expected to cost. Inside of the planner only.
#pragma once

#include "linescan/ops/selective_scan/gpu_plan.h"

namespace linescan {

// Of the backward pass's first kernel with several states: with state_lanes, or as the general variant goes.
double first_kernel_cycles(const SelectiveScanSize& size, const SelectiveScanGpuPlan& plan,
                           const Gpu& gpu);

// Of the whole pass on one multiprocessor.
double expected_cycles(const SelectiveScanSize& size, const SelectiveScanGpuPlan& plan,
                       const Gpu& gpu);

}  // namespace linescan
