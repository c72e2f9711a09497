#include "linescan/ops/layer_norm/gpu_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/math.h"
#include "linescan/device/gpu.h"

namespace linescan {
namespace {

constexpr int64_t kWarp = 32;
constexpr int64_t kBlock = 128;
// Vectors of a row per thread that kernels are compiled for: 96, 192, 384, 768 channels take 3.
constexpr int64_t kVectorCounts[] = {1, 3, 4};

struct RowShare {
  int64_t lanes, vectors;
};

// The share with the fewest idle places; among equals the widest, whose accesses are the longest.
// No vectors where the row does not fit, or its ends do not fall between two vectors.
RowShare share_row(const LayerNormSize& size) {
  RowShare best = {kWarp, 0};
  if (!size.vectors || size.channels % kNormVector != 0) return best;
  const int64_t needed = size.channels / kNormVector;
  int64_t fewest = INT64_MAX;
  for (int64_t lanes = 1; lanes <= kWarp; lanes *= 2)
    for (const int64_t vectors : kVectorCounts)
      if (lanes * vectors >= needed && lanes * vectors <= fewest) {
        fewest = lanes * vectors;
        best = {lanes, vectors};
      }
  return best;
}

// Blocks that a multiprocessor's 65 536 registers hold, by what nvcc 13 gives a thread (sm_90a).
int64_t resident_blocks(Pass pass, int64_t vectors) {
  if (vectors <= 1) return 8;
  if (pass == Pass::kForward) return vectors == 3 ? 5 : 4;  // 94 and 127 registers
  return vectors == 3 ? 3 : 2;                              // 156 and 207
}

}  // namespace

LayerNormGpuPlan plan(const LayerNormSize& size, Pass pass, const Gpu& gpu) {
  const bool backward = pass == Pass::kBackward;
  const auto [lanes, vectors] = share_row(size);
  LayerNormGpuPlan plan;
  plan.pass = pass;
  plan.lanes = lanes;
  plan.vectors = vectors;
  plan.block = kBlock;
  plan.rows_a_block = kBlock / lanes;
  // As many blocks as run at once: weights are then loaded, and their gradients summed, once a
  // block, and no block is left over for a round of its own.
  plan.grid = std::min(ceil_div(size.rows, plan.rows_a_block),
                       std::max<int64_t>(1, gpu.multiprocessors) * resident_blocks(pass, vectors));
  if (backward) {
    plan.shared_bytes = vectors > 0 ? 2 * kBlock * static_cast<int64_t>(sizeof(float)) : 0;
    plan.workspace_bytes = 2 * plan.grid * size.channels * static_cast<int64_t>(sizeof(float));
  }

  const int64_t numbers = size.rows * size.channels;
  const int64_t in = size_of(size.dtype), out = size_of(size.out_dtype);
  plan.bytes = numbers * (in + out) + 8 * size.rows + 8 * size.channels;
  if (backward) plan.bytes += numbers * (size.skip ? 2 : 1) * in + 8 * size.channels;
  return plan;
}

std::string to_string(const LayerNormGpuPlan& plan) {
  return fmt::format(
      "layer_norm {} on a GPU\n"
      "  row             {} lanes, {}\n"
      "  grid            {} blocks of {} threads: {} rows at once\n"
      "  shared memory   {} bytes a block\n"
      "  workspace       {} bytes\n"
      "  bytes           {}",
      name_of(plan.pass), plan.lanes,
      plan.vectors > 0
          ? fmt::format("{} vectors of {} numbers each in registers", plan.vectors, kNormVector)
          : "read again where it is needed",
      plan.grid, plan.block, plan.rows_a_block, plan.shared_bytes, plan.workspace_bytes,
      plan.bytes);
}

}  // namespace linescan
