#include "linescan/ops/causal_conv1d/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/math.h"
#include "linescan/device/gpu.h"

namespace linescan {
namespace {

constexpr int64_t kVector = 4;
constexpr int64_t kPacks = 32;      // of a block at most: a warp reads neighbouring addresses
constexpr int64_t kBlock = 128;     // threads
constexpr int64_t kLongest = 32;    // tokens of a run: each run reads width - 1 more at its start
constexpr int64_t kShortest = 8;    // (backward at both ends), a third of so few
constexpr int64_t kThreads = 1024;  // a multiprocessor, before runs are worth shortening

// Blocks of a multiprocessor that sum up weights side by side: as many as their registers leave room for.
int64_t resident_blocks(int64_t width) { return width > 2 ? 3 : 4; }

}  // namespace

CausalConv1dGpuPlan plan(const CausalConv1dGpuSize& of, Pass pass, const Gpu& gpu) {
  const CausalConv1dSize& size = of.size;
  const int64_t multiprocessors = std::max<int64_t>(1, gpu.multiprocessors);
  CausalConv1dGpuPlan plan;
  plan.pass = pass;
  plan.vector = of.vectors && size.channels % kVector == 0 ? kVector : 1;
  const int64_t packs = size.channels / plan.vector;
  plan.run = kLongest;
  while (plan.run > kShortest &&
         size.batch * ceil_div(size.length, plan.run) * packs < kThreads * multiprocessors)
    plan.run /= 2;
  plan.runs_an_item = ceil_div(size.length, plan.run);
  // Packs are spread evenly over the blocks that they need.
  plan.chunks = ceil_div(packs, kPacks);
  plan.packs_a_block = plan.chunks == 0 ? 1 : ceil_div(packs, plan.chunks);
  plan.block = kBlock;
  plan.runs_a_block = kBlock / plan.packs_a_block;
  plan.groups = ceil_div(size.batch * plan.runs_an_item, plan.runs_a_block);

  const int64_t numbers = size.batch * size.length * size.channels;
  const int64_t parameters = (size.width + 1) * size.channels;
  constexpr int64_t kFloat = sizeof(float);
  plan.bytes = 2 * numbers * size_of(size.dtype) + parameters * kFloat;
  plan.exponentials = size.silu ? numbers : 0;
  if (pass == Pass::kForward) return plan;

  plan.groups =
      std::min(plan.groups, std::max<int64_t>(1, resident_blocks(size.width) * multiprocessors /
                                                     std::max<int64_t>(1, plan.chunks)));
  plan.shared_bytes = kBlock * plan.vector * kFloat;
  plan.workspace_bytes = plan.groups * parameters * kFloat;
  plan.bytes += numbers * size_of(size.dtype) + parameters * kFloat;
  return plan;
}

std::string to_string(const CausalConv1dGpuPlan& plan) {
  return fmt::format(
      "causal_conv1d {} on a GPU\n"
      "  thread          {} channels, runs of {} tokens\n"
      "  grid            {} blocks of {} threads: {} packs of channels x {} runs\n"
      "  shared memory   {} bytes a block\n"
      "  workspace       {} bytes\n"
      "  bytes           {}\n"
      "  exponentials    {}",
      name_of(plan.pass), plan.vector, plan.run, plan.grid(), plan.block, plan.packs_a_block,
      plan.runs_a_block, plan.shared_bytes, plan.workspace_bytes, plan.bytes, plan.exponentials);
}

}  // namespace linescan
