#include "linescan/ops/depthwise_conv/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/math.h"
#include "linescan/device/gpu.h"

namespace linescan {
namespace {

constexpr int64_t kVector = 4;
constexpr int64_t kPacks = 32;     // of a block at most
constexpr int64_t kShortest = 7;   // columns of a strip; each costs two more to read
constexpr int64_t kThreads = 512;  // that a multiprocessor holds, by the kernels' registers
constexpr int64_t kRounds = 4;     // of the whole device: the last one is then a small loss
constexpr int64_t kTaps = 9;

// `rows_read`: numbers of a column that a thread keeps on their way.
ConvStrips cut(const DepthwiseConvSize& size, int64_t rows, int64_t rows_read, int64_t block,
               const Gpu& gpu) {
  ConvStrips cut;
  cut.vector = size.vectors && size.channels % kVector == 0 ? kVector : 1;
  cut.rows = rows;
  const int64_t shared_a_thread = kConvAhead * rows_read * cut.vector * size_of(size.dtype);
  while (block > 2 * kPacks && block * shared_a_thread > gpu.shared_per_block) block /= 2;
  cut.bands = ceil_div(size.height, rows);
  // Packs are spread evenly over the blocks that they need: 24 each, not 32 and 16.
  const int64_t packs = size.channels / cut.vector;
  cut.chunks = ceil_div(packs, kPacks);
  cut.packs_a_block = ceil_div(packs, cut.chunks);
  cut.strips_a_block = block / cut.packs_a_block;
  cut.block = block;
  cut.shared_bytes = block * shared_a_thread;

  const int64_t wanted = kRounds * kThreads * std::max<int64_t>(1, gpu.multiprocessors);
  cut.segments = 1;
  while (ceil_div(size.width, 2 * cut.segments) >= kShortest &&
         size.batch * cut.bands * cut.segments * packs < wanted)
    cut.segments *= 2;
  cut.segment = std::max<int64_t>(1, ceil_div(size.width, cut.segments));
  cut.segments = ceil_div(size.width, cut.segment);
  cut.strips = size.batch * cut.bands * cut.segments;
  cut.groups = ceil_div(cut.strips, cut.strips_a_block);
  return cut;
}

}  // namespace

DepthwiseConvGpuPlan plan(const DepthwiseConvSize& size, Pass pass, const Gpu& gpu) {
  const int64_t numbers = size.batch * size.height * size.width * size.channels;
  const int64_t element = size_of(size.dtype), parameters = (kTaps + 1) * size.channels;
  constexpr int64_t kFloat = sizeof(float);
  DepthwiseConvGpuPlan plan;
  plan.pass = pass;
  plan.convolution = cut(size, kConvRows, kConvRows + 2, 256, gpu);
  plan.bytes = 2 * numbers * element + parameters * kFloat;
  plan.exponentials = size.silu ? numbers : 0;
  if (pass == Pass::kForward) return plan;

  plan.sums = cut(size, 1, /*x and gout*/ 3 + 1, 128, gpu);
  // One round of blocks, each with sums of its own: three of 128 threads a multiprocessor.
  const int64_t resident = 3 * std::max<int64_t>(1, gpu.multiprocessors);
  plan.sums.groups = std::min(plan.sums.groups, std::max<int64_t>(1, resident / plan.sums.chunks));
  // The same memory takes the sums of the block's threads in the end.
  plan.sums.shared_bytes =
      std::max(plan.sums.shared_bytes, plan.sums.block * plan.sums.vector * kFloat);
  plan.activation_bytes = size.silu ? round_up(numbers * element, 16) : 0;
  plan.workspace_bytes = plan.activation_bytes + plan.sums.groups * parameters * kFloat;
  plan.bytes += numbers * element + parameters * kFloat;
  return plan;
}

std::string to_string(const DepthwiseConvGpuPlan& plan) {
  const ConvStrips& c = plan.convolution;
  std::string text = fmt::format(
      "depthwise_conv {} on a GPU\n"
      "  thread          {} channels, strips of {} x {} pixels\n"
      "  grid            {} blocks of {} threads: {} packs of channels x {} strips\n"
      "  shared memory   {} bytes a block\n",
      name_of(plan.pass), c.vector, c.rows, c.segment, c.grid(), c.block, c.packs_a_block,
      c.strips_a_block, c.shared_bytes);
  if (plan.pass == Pass::kBackward)
    text += fmt::format("  sums            {} blocks of {} threads, {} bytes of shared memory\n",
                        plan.sums.grid(), plan.sums.block, plan.sums.shared_bytes);
  return text + fmt::format(
                    "  workspace       {} bytes\n"
                    "  bytes           {}\n"
                    "  exponentials    {}",
                    plan.workspace_bytes, plan.bytes, plan.exponentials);
}

}  // namespace linescan
