// Which variant of selective_scan is taken for which sizes and GPUs, and how far apart states are kept. No kernel runs here.

#include <gtest/gtest.h>

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/device/gpu.h"
#include "linescan/ops/selective_scan/gpu_plan.h"

namespace linescan::testing {
namespace {

// Where rows are too many for lanes along the length and too few for one lane each, on large devices and on those with 99
// KiB of shared memory a block.
TEST(SelectiveScanGpuPlanner, LetsWarpsWalkBetweenFewRowsAndMany) {
  SelectiveScanSize size{.batch = 1, .channels = 4096, .length = 16384, .states = 16};
  size.dtype = DType::kBFloat16, size.out_dtype = DType::kFloat32;
  for (const char* device : {"h200", "a100", "rtx4090", "l4"})
    for (const bool kept : {false, true})
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        size.kept_states = kept;
        const SelectiveScanGpuPlan chosen = plan(size, pass, find_gpu(device));
        EXPECT_TRUE(chosen.walkers) << device << to_string(chosen);
        EXPECT_EQ(chosen.kept_bytes, kept ? int64_t{1023} * 4096 * 16 * 4 : 0);
      }
  for (const int64_t channels : {512, 32768}) {
    size.channels = channels;
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      EXPECT_FALSE(plan(size, pass, find_gpu("h200")).walkers) << channels;
  }
  // A batch in slices costs each of them.
  size.batch = 256, size.channels = 4096, size.length = 4096, size.states = 4;
  const auto plans = legal_plans(size, Pass::kBackward, find_gpu("h200"));
  const auto sliced = std::ranges::find_if(plans, [](const auto& p) { return p.walkers; });
  ASSERT_NE(sliced, plans.end());
  EXPECT_LT(sliced->slice, size.batch);
  EXPECT_FALSE(plan(size, Pass::kBackward, find_gpu("h200")).walkers);
}

// Lanes along the length are many where rows are few.
TEST(SelectiveScanGpuPlanner, ComparesTheFirstKernels) {
  SelectiveScanSize size{.batch = 8, .channels = 4096, .length = 2048, .states = 16};
  size.dtype = DType::kBFloat16;
  EXPECT_EQ(plan(size, Pass::kBackward, find_gpu("h100")).ahead_lanes, 2);
  size.batch = 1, size.channels = 256, size.length = 16384;
  EXPECT_EQ(plan(size, Pass::kBackward, find_gpu("h100")).ahead_lanes, 0);
  size.batch = 8, size.channels = 2048, size.length = 2048, size.states = 64;
  const SelectiveScanGpuPlan many = plan(size, Pass::kBackward, find_gpu("h100"));
  EXPECT_TRUE(many.many_states);
  EXPECT_GT(many.ahead_lanes, 0);  // it has no first kernel of its own
}

// What decides where states are kept must not depend on the device.
TEST(SelectiveScanGpuPlanner, TakesShortRowsAtOddAddressesByTheirSizes) {
  SelectiveScanSize size{.batch = 128, .channels = 3072, .groups = 4, .length = 49, .states = 1};
  size.dtype = DType::kBFloat16;
  const auto is_short = [&] {
    SelectiveScanSize kept = size;
    kept.kept_states = true;
    const bool ahead = plan(kept, Pass::kForward, find_gpu("h100")).short_rows;
    EXPECT_EQ(ahead, plan(kept, Pass::kBackward, find_gpu("rtx3090")).short_rows);
    return ahead;
  };
  EXPECT_TRUE(is_short());
  EXPECT_EQ(gpu_kept_states(size), int64_t{6} * 128 * 3072);
  size.batch = 8;  // few rows
  EXPECT_FALSE(is_short());
  size.batch = 128, size.length = 52;  // rows start at multiples of eight bytes
  EXPECT_FALSE(is_short());
  size.length = 65;
  EXPECT_FALSE(is_short());
}

// Where a warp has whole rows there is no state to keep, whatever the device.
TEST(SelectiveScanGpuPlanner, TakesWholeRowsThatFillTheLanes) {
  SelectiveScanSize size{.batch = 128, .channels = 1536, .groups = 4, .length = 196, .states = 1};
  size.dtype = DType::kBFloat16;
  size.kept_states = true;
  for (const char* device : {"h200", "rtx3090", "v100"}) {
    EXPECT_GT(plan(size, Pass::kBackward, find_gpu(device)).whole_rows, 0) << device;
    EXPECT_EQ(plan(size, Pass::kForward, find_gpu(device)).whole_rows, 0) << device;
  }
  EXPECT_EQ(gpu_kept_states(size), 0);
  for (const int64_t length :
       {140, 200, 182, 252}) {  // few lanes, part of a segment, odd addresses, more than a warp
    size.length = length;
    EXPECT_EQ(plan(size, Pass::kBackward, find_gpu("h200")).whole_rows, 0) << length;
    EXPECT_GT(gpu_kept_states(size), 0) << length;
  }
}

// Sixteen bytes a step of a row at most; and the same for every device.
TEST(SelectiveScanGpuPlanner, KeepsSeveralStatesWhereTheyAreFew) {
  // More channels than the variant for one state can hold in shared memory: another one has its tiles.
  SelectiveScanSize wide{.batch = 1, .channels = 1 << 20, .length = 2048, .states = 1};
  wide.kept_states = true;
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const SelectiveScanGpuPlan other = plan(wide, pass, find_gpu("h100"));
    EXPECT_EQ(tile_of(other), other.kept_steps);
    EXPECT_EQ(other.kept_steps, kGpuWarp * kOneItems);
  }
  SelectiveScanSize size{.batch = 8, .channels = 4096, .length = 2048, .states = 16};
  size.dtype = DType::kBFloat16;
  EXPECT_EQ(gpu_kept_states(size), int64_t{127} * 8 * 4096 * 16);
  for (const char* device : {"h100", "v100", "orin"}) {
    SelectiveScanSize kept = size;
    kept.kept_states = true;
    EXPECT_EQ(plan(kept, Pass::kForward, find_gpu(device)).kept_steps, kGpuItems) << device;
    EXPECT_EQ(plan(kept, Pass::kBackward, find_gpu(device)).segments, 1) << device;
  }
  size.states = 64;  // divided among warps: one lane a row also for fewer rows
  EXPECT_EQ(gpu_kept_states(size), int64_t{127} * 8 * 4096 * 64);
  size.states = 65;
  EXPECT_EQ(gpu_kept_states(size), 0);
  size.batch = 1;
  EXPECT_EQ(gpu_kept_states(size), int64_t{63} * 4096 * 65);
  size.constant_B = true;
  EXPECT_EQ(gpu_kept_states(size), 0);
  size.constant_B = false, size.length_last = false;
  EXPECT_EQ(gpu_kept_states(size), 0);
}

// No number of states is too many for any device, and every plan keeps to the device's limits.
TEST(SelectiveScanGpuPlanner, PlansEveryDevice) {
  for (const Gpu& gpu : known_gpus())
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      for (const int64_t states : {1, 16, 256, 512, 1024, 5000}) {
        const SelectiveScanSize size{
            .batch = 8, .channels = 1024, .length = 2048, .states = states};
        const SelectiveScanGpuPlan one = plan(size, pass, gpu);
        EXPECT_EQ(one, plan(size, pass, gpu));
        EXPECT_LE(one.shared_bytes, gpu.shared_per_block) << gpu.name << ' ' << states;
        EXPECT_GE(one.blocks_per_multiprocessor, 1);
      }
}

}  // namespace
}  // namespace linescan::testing
