// How causal_conv1d will run on a GPU: a plain value, made by a pure function, printable without
// running anything.
#pragma once

#include <cstdint>

#include "linescan/base/string_forward.h"
#include "linescan/ops/causal_conv1d/plan.h"

namespace linescan {

struct Gpu;

struct CausalConv1dGpuSize {
  CausalConv1dSize size;
  bool vectors = true;  // four neighbouring channels are one memory access, everywhere

  bool operator==(const CausalConv1dGpuSize&) const = default;
};

// A thread owns a few neighbouring channels and walks along runs of tokens. A block is a number of
// channel packs times a number of runs.
struct CausalConv1dGpuPlan {
  static constexpr const char* kOperator = "causal_conv1d";

  Pass pass = Pass::kForward;
  int64_t vector = 0;  // channels of a thread: 4, or 1 where layout or addresses do not allow it
  int64_t run = 0;     // tokens that a thread walks along
  int64_t runs_an_item = 0;
  int64_t packs_a_block = 0, runs_a_block = 0, block = 0;
  int64_t chunks = 0;  // blocks side by side along the channels
  int64_t groups = 0;  // blocks along the runs; block g takes every groups-th set of runs
  int64_t shared_bytes = 0;
  int64_t workspace_bytes = 0;  // backward: the blocks' sums for weight and bias

  int64_t bytes = 0;         // every input read once, every output written once
  int64_t exponentials = 0;  // one a SiLU

  int64_t grid() const { return chunks * groups; }
  bool operator==(const CausalConv1dGpuPlan&) const = default;
};

CausalConv1dGpuPlan plan(const CausalConv1dGpuSize& size, Pass pass, const Gpu& gpu);

std::string to_string(const CausalConv1dGpuPlan& plan);

}  // namespace linescan
