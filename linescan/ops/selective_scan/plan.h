// How selective_scan will run a problem: a plain value, made by a pure function, printable
// without running anything.
#pragma once

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"

namespace linescan {

struct SelectiveScanSize {
  int64_t batch = 0, channels = 0, groups = 1, length = 0, states = 0;
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  bool softplus = false, gate = false, constant_B = false, constant_C = false;
  bool length_last = true;   // neighbouring steps of u are neighbours in memory
  bool kept_states = false;  // the problem has room for them (selective_scan.h)
  bool ordered = false;      // the problem has an order of its own (selective_scan.h)

  bool operator==(const SelectiveScanSize&) const = default;
};

struct SelectiveScanPlan {
  static constexpr const char* kOperator = "selective_scan";

  Pass pass = Pass::kForward;
  int64_t channel_block = 0;  // channels that one task scans side by side, in vector lanes
  int64_t time_tile = 0;      // steps held in the cache at once
  int64_t blocks = 0;         // channel blocks of one group
  int64_t batch_chunks = 0;   // backward: parts of the batch with parameter sums of their own
  int64_t partitions = 0;     // backward: parts of a group with sums for B and C of their own
  int64_t tasks = 0;          // independent pieces of work; fixes the order of every sum
  int64_t slots = 0;          // tasks in flight at once, each with scratch memory
  int64_t scratch_bytes = 0;  // of one slot
  int64_t workspace_bytes = 0;

  // What the problem costs at least, for judging a measured time.
  int64_t bytes = 0;         // every input read once, every output written once
  int64_t exponentials = 0;  // one a state and step, two for a softplus, one for a gate

  bool operator==(const SelectiveScanPlan&) const = default;
};

// `threads`: how many tasks the caller can run at once. Decides memory, never results.
SelectiveScanPlan plan(const SelectiveScanSize& size, Pass pass, int64_t threads);

std::string to_string(const SelectiveScanPlan& plan);

}  // namespace linescan
