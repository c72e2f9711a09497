// How causal_conv1d will run a problem on the CPU: a plain value, made by a pure function, printable
// without running anything.
#pragma once

#include <cstdint>

#include "linescan/base/dtype.h"
#include "linescan/base/string_forward.h"
#include "linescan/ops/pass.h"

namespace linescan {

struct CausalConv1dSize {
  int64_t batch = 0, length = 0, channels = 0, width = 0;
  int64_t sequences = 0;  // batch, unless sequences are packed
  DType dtype = DType::kFloat32;
  bool silu = true;

  bool operator==(const CausalConv1dSize&) const = default;
};

struct CausalConv1dPlan {
  static constexpr const char* kOperator = "causal_conv1d";

  Pass pass = Pass::kForward;
  int64_t channel_block = 0;  // channels that one task convolves side by side, in vector lanes
  int64_t time_tile = 0;      // tokens held in the cache at once
  int64_t blocks = 0;         // channel blocks
  int64_t tiles = 0;          // time tiles of a batch item
  int64_t parts = 0;          // ranges of tiles; backward: each with sums for weight and bias
  int64_t tasks = 0;          // independent pieces of work; fixes the order of every sum
  int64_t slots = 0;          // tasks in flight at once, each with scratch memory
  int64_t scratch_bytes = 0;  // of one slot
  int64_t workspace_bytes = 0;

  int64_t bytes = 0;         // every input read once, every output written once
  int64_t exponentials = 0;  // one a SiLU

  bool operator==(const CausalConv1dPlan&) const = default;
};

// `threads`: how many tasks the caller can run at once. Decides memory, never results.
CausalConv1dPlan plan(const CausalConv1dSize& size, Pass pass, int64_t threads);

std::string to_string(const CausalConv1dPlan& plan);

}  // namespace linescan
