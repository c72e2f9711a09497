// What the number of states costs: the scan of a network's first stage, measured here, beside the plan
// that a GPU would run it by.
#pragma once

#include <string>
#include <vector>

#include "linescan/device/gpu.h"
#include "linescan/lab/measurement.h"
#include "linescan/ops/ss2d/plan.h"

namespace linescan::lab {

// Of one pass, as planned.
struct PlannedPass {
  std::string kernels;  // "ss2d", "ss2d, packed", "selective_scan"
  int64_t shared_bytes = 0, workspace_bytes = 0;
  int64_t blocks = 0;    // of a multiprocessor
  double occupancy = 0;  // warps that a multiprocessor holds over those that it could hold
};

struct StatesRow {
  int64_t states = 0;
  Timed forward, training;    // training: forward and backward; not measured without the memory
  int64_t scratch_bytes = 0;  // of a thread of the CPU, backward; 0 on a GPU
  PlannedPass planned_forward, planned_backward;
};

struct StatesCost {
  Ss2dSize shape;  // without states
  std::string planned_for;
  std::vector<StatesRow> rows;  // rising
};

// The operator ss2d on the plane of the first stage, cross routes. `gpu` is the one to plan for. Throws
// InvalidArgument for a network without scans and for states below 1.
StatesCost cost_of_states(const Bench& bench, const VMambaConfig& config, int64_t size,
                          std::vector<int64_t> states, const Gpu& gpu);

}  // namespace linescan::lab
