// How ss2d will run a problem: a plain value, made by a pure function, printable without running
// anything.
#pragma once

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"

namespace linescan {

struct Ss2dSize {
  int64_t batch = 0, channels = 0, height = 0, width = 0, states = 0, rank = 0, routes = 0;
  DType dtype = DType::kFloat32;
  DType out_dtype = DType::kFloat32;
  bool channels_last = true;
  bool kept_states = false;  // the forward pass keeps states for the backward pass (GPUs)

  int64_t pixels() const { return height * width; }
  int64_t record() const { return rank + 2 * states; }  // numbers a pixel and route: dts, B, C
  bool operator==(const Ss2dSize&) const = default;
};

struct Ss2dPlan {
  static constexpr const char* kOperator = "ss2d";

  Pass pass = Pass::kForward;
  int64_t channel_block = 0;  // channels that one task scans side by side, in vector lanes
  int64_t time_tile = 0;      // steps held in the cache at once
  int64_t blocks = 0;         // channel blocks
  int64_t batch_chunks = 0;   // backward: parts of the batch with parameter sums of their own
  int64_t partitions = 0;     // backward: parts of the channels with projection sums of their own
  int64_t tasks = 0;          // independent pieces of work; fixes the order of every sum
  int64_t slots = 0;          // tasks in flight at once, each with scratch memory
  bool stage_planes = false;  // planes are first turned to channels-last in scratch
  int64_t scratch_bytes = 0;  // of one slot
  int64_t workspace_bytes = 0;

  // What the problem costs at least, for judging a measured time.
  int64_t bytes = 0;         // every input read once, every output written once
  int64_t exponentials = 0;  // one a state, two for the softplus, for each pixel, channel and route

  bool operator==(const Ss2dPlan&) const = default;
};

// `threads`: how many tasks the caller can run at once. Decides memory, never results.
Ss2dPlan plan(const Ss2dSize& size, Pass pass, int64_t threads);

std::string to_string(const Ss2dPlan& plan);

}  // namespace linescan
