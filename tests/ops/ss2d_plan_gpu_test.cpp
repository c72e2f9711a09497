// How ss2d's plans for GPUs cut the work. No kernel runs here.

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/device/gpu.h"
#include "linescan/ops/ss2d/gpu_plan.h"
#include "linescan/ops/ss2d/gpu_products.h"

namespace linescan::testing {
namespace {

TEST(Ss2dGpuPlan, NeighboursInSharedMemoryAreInDifferentBanks) {
  constexpr int64_t kSteps = kGpuSegmentSteps;
  for (int64_t height = 1; height <= 60; ++height)
    for (int64_t width = 1; width <= 60; ++width) {
      const int64_t pitch = gpu_sum_pitch(height, width);
      EXPECT_GE(pitch, width);
      EXPECT_LE(pitch, width + 3);
    }
  // Four neighbouring segments of whole lines, in rows and in columns.
  for (const int64_t side : {7, 14, 28, 56}) {
    const int64_t pitch = gpu_sum_pitch(side, side), parts = side / kSteps;
    for (const auto& [step, line] : {std::pair{int64_t{1}, pitch}, {pitch, int64_t{1}}}) {
      std::set<int64_t> banks;
      for (int64_t segment = 0; segment < kGpuSegments; ++segment)
        banks.insert((segment / parts * line + segment % parts * kSteps * step) % kGpuSegments);
      EXPECT_EQ(banks.size(), kGpuSegments) << side;
    }
  }
}

TEST(Ss2dGpuPlan, WalksEvenNumbersOfStatesOfWholePlanes) {
  const Gpu& gpu = find_gpu("h100");
  const auto planned = [&](Pass pass, const auto& change) {
    Ss2dSize size = {.batch = 128,
                     .channels = 96,
                     .height = 56,
                     .width = 56,
                     .states = 16,
                     .rank = 6,
                     .routes = 4,
                     .dtype = DType::kBFloat16,
                     .out_dtype = DType::kBFloat16};
    change(size);
    return plan(size, pass, gpu);
  };
  // Either pass if one does; and states are kept then.
  const auto walks = [&](const auto& change) {
    const Ss2dGpuPlan ahead = planned(Pass::kForward, change);
    const Ss2dGpuPlan back = planned(Pass::kBackward, change);
    EXPECT_EQ(ahead.walks_states, back.walks_states);
    Ss2dSize size;
    planned(Pass::kForward, [&](Ss2dSize& changed) { change(changed), size = changed; });
    EXPECT_EQ(back.stores_delta, back.walks_states ? size.rank > kGpuOnChipNumbers : back.packed);
    EXPECT_EQ(gpu_kept_states(size) > 0, back.walks_states || size.states == 1);
    size.kept_states = true;
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      EXPECT_EQ(plan(size, pass, gpu).kept, gpu_kept_states(size) > 0);
    return ahead.walks_states;
  };
  const Ss2dGpuPlan whole = planned(Pass::kForward, [](Ss2dSize&) {});
  EXPECT_TRUE(whole.walks_states);
  EXPECT_EQ(whole.workspace_bytes, 0);
  EXPECT_EQ(whole.block, 32 * kGpuPackedWarps);
  EXPECT_LE(whole.shared_bytes, gpu.shared_per_block);
  EXPECT_TRUE(walks([](Ss2dSize&) {}));
  EXPECT_EQ(planned(Pass::kBackward, [](Ss2dSize&) {}).block, 32 * kGpuBackwardWarps);
  EXPECT_TRUE(walks([](Ss2dSize& size) { size.states = 2; }));
  EXPECT_TRUE(walks([](Ss2dSize& size) { size.rank = 48; }));
  for (const auto change :
       {+[](Ss2dSize& size) { size.states = 1; }, +[](Ss2dSize& size) { size.states = 15; },
        +[](Ss2dSize& size) { size.states = 256; }, +[](Ss2dSize& size) { size.rank = 5; },
        +[](Ss2dSize& size) { size.rank = 50; }, +[](Ss2dSize& size) { size.channels = 95; },
        +[](Ss2dSize& size) { size.height = 64; },
        +[](Ss2dSize& size) { size.channels_last = false; },
        +[](Ss2dSize& size) { size.dtype = DType::kFloat32; }})
    EXPECT_FALSE(walks(change));
  EXPECT_TRUE(walks([](Ss2dSize& size) { size.states = 20; }));
  EXPECT_FALSE(walks([](Ss2dSize& size) { size.states = 22; }));
  // No plane is so small that states which leave nothing beside them are walked.
  for (int64_t states = 2; states <= 300; states += 2)
    for (const int64_t routes : {1, 4, 16, 40}) {
      const auto small = [&](Ss2dSize& size) {
        size.height = size.width = 1;
        size.states = states;
        size.routes = routes;
      };
      EXPECT_NO_THROW(planned(Pass::kForward, small)) << states << ' ' << routes;
    }
  // What is walked is one tile, also where the general kernels, which stand in for odd addresses, need more beside it.
  for (const char* device : {"rtx3090", "a100", "h100"})
    for (const int64_t states : {2, 4, 16})
      for (const int64_t routes : {1, 4})
        for (int64_t height = 20; height <= 64; ++height)
          for (int64_t width = 20; width <= 64; ++width) {
            const Ss2dSize size = {.channels = 96,
                                   .height = height,
                                   .width = width,
                                   .states = states,
                                   .rank = 6,
                                   .routes = routes,
                                   .dtype = DType::kBFloat16};
            for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
              const Ss2dGpuPlan made = plan(size, pass, find_gpu(device));
              EXPECT_FALSE(made.walks_states && made.pieces > 0)
                  << device << ' ' << states << ' ' << routes << ' ' << height << ' ' << width;
            }
          }
}

TEST(Ss2dGpuPlan, PlanesThatFillTheDeviceAreCells) {
  const Gpu& gpu = find_gpu("h100");
  const auto planned = [&](Pass pass, const auto& change) {
    Ss2dSize size = {.batch = 32,
                     .channels = 96,
                     .height = 128,
                     .width = 128,
                     .states = 1,
                     .rank = 6,
                     .routes = 4,
                     .dtype = DType::kBFloat16,
                     .out_dtype = DType::kBFloat16,
                     .kept_states = true};
    change(size);
    return plan(size, pass, gpu);
  };
  const auto same = [](Ss2dSize&) {};
  const Ss2dGpuPlan ahead = planned(Pass::kForward, same), back = planned(Pass::kBackward, same);
  EXPECT_TRUE(ahead.cells && back.cells);
  EXPECT_EQ(ahead.blocks_per_multiprocessor, kCellBlocks);
  EXPECT_EQ(back.blocks_per_multiprocessor, kCellBackwardBlocks);
  for (const Ss2dGpuPlan& plan : {ahead, back}) EXPECT_EQ(plan.block, 32 * kCellWarps);
  for (const auto change :
       {+[](Ss2dSize& size) { size.states = 2; }, +[](Ss2dSize& size) { size.rank = 8; },
        +[](Ss2dSize& size) { size.rank = 5; }, +[](Ss2dSize& size) { size.routes = 5; },
        +[](Ss2dSize& size) { size.channels = 88; },
        +[](Ss2dSize& size) { size.channels = 1 << 19; },
        +[](Ss2dSize& size) { size.height = 132; }, +[](Ss2dSize& size) { size.width = 520; },
        +[](Ss2dSize& size) { size.width = 24; },
        +[](Ss2dSize& size) { size.channels_last = false; },
        +[](Ss2dSize& size) { size.dtype = DType::kFloat32; },
        +[](Ss2dSize& size) { size.batch = 2; }})
    for (const Pass pass : {Pass::kForward, Pass::kBackward})
      EXPECT_FALSE(planned(pass, change).cells);
  const auto wide = [](Ss2dSize& size) { size.out_dtype = DType::kFloat32; };
  EXPECT_TRUE(planned(Pass::kForward, wide).cells);
  EXPECT_FALSE(planned(Pass::kBackward, wide).cells);
  const auto unkept = [](Ss2dSize& size) { size.kept_states = false; };
  EXPECT_TRUE(planned(Pass::kForward, unkept).cells);
  EXPECT_FALSE(planned(Pass::kBackward, unkept).cells);
  // Backward two blocks a multiprocessor do not fit every device.
  for (const char* device : {"rtx3090", "a100", "h100", "rtx4090"})
    for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
      const Ss2dSize size = {.batch = 64,
                             .channels = 96,
                             .height = 128,
                             .width = 128,
                             .states = 1,
                             .rank = 6,
                             .routes = 4,
                             .dtype = DType::kFloat16,
                             .out_dtype = DType::kFloat16,
                             .kept_states = true};
      const Gpu& other = find_gpu(device);
      const Ss2dGpuPlan made = plan(size, pass, other);
      EXPECT_LE(made.shared_bytes, other.shared_per_block) << device;
      EXPECT_GE(made.blocks_per_multiprocessor, 1) << device;
      const bool small = other.shared_per_multiprocessor < 150 * 1024;
      EXPECT_EQ(made.cells, pass == Pass::kForward || !small) << device;
    }
}

// Either kind of kernels, which stand in for each other.
TEST(Ss2dGpuPlan, BlocksFitTheDevice) {
  for (const char* device : {"rtx3090", "a100", "h100"})
    for (int64_t side = 1; side <= 64; ++side)
      for (const int64_t routes : {1, 4})
        for (const int64_t rank : {6, 30, 64})
          for (const DType out : {DType::kFloat32, DType::kBFloat16})
            for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
              const Ss2dSize size = {.batch = 2,
                                     .channels = 96,
                                     .height = side,
                                     .width = side,
                                     .states = 1,
                                     .rank = rank,
                                     .routes = routes,
                                     .dtype = DType::kBFloat16,
                                     .out_dtype = out};
              const Gpu& gpu = find_gpu(device);
              const Ss2dGpuPlan made = plan(size, pass, gpu);
              const auto what = ::testing::Message() << device << ' ' << side << ' ' << routes
                                                     << ' ' << rank << ' ' << name_of(pass);
              EXPECT_LE(made.shared_bytes, gpu.shared_per_block) << what;
              EXPECT_LE(made.general_shared_bytes, gpu.shared_per_block) << what;
              EXPECT_GE(made.blocks_per_multiprocessor, 1) << what;
            }
}

TEST(Ss2dGpuPlan, WalksImagesOfSmallPlanesWhereTheyFillTheDevice) {
  const auto planned = [](Pass pass, const auto& change) {
    Ss2dSize size = {.batch = 128,
                     .channels = 768,
                     .height = 7,
                     .width = 7,
                     .states = 1,
                     .rank = 48,
                     .routes = 4,
                     .dtype = DType::kBFloat16,
                     .out_dtype = DType::kBFloat16};
    change(size);
    return plan(size, pass, find_gpu("h100"));
  };
  const auto walks = [&](const auto& change) {
    return planned(Pass::kForward, change).walks_images;
  };
  const Ss2dGpuPlan whole = planned(Pass::kForward, [](Ss2dSize&) {});
  EXPECT_TRUE(whole.walks_images);
  EXPECT_EQ(whole.grid, 768 / 64 * 128 / kGpuSegments);
  EXPECT_EQ(whole.blocks_per_multiprocessor, kGpuImageBlocks);
  EXPECT_EQ(whole.warps_per_multiprocessor, kGpuImageBlocks * kGpuImageWarps);
  EXPECT_FALSE(planned(Pass::kBackward, [](Ss2dSize&) {}).walks_images);
  EXPECT_TRUE(walks([](Ss2dSize& size) { size.height = 8; }));
  EXPECT_TRUE(walks([](Ss2dSize& size) { size.batch = 64; }));
  for (const auto change :
       {+[](Ss2dSize& size) { size.batch = 48; }, +[](Ss2dSize& size) { size.height = 14; },
        +[](Ss2dSize& size) { size.states = 2; }, +[](Ss2dSize& size) { size.rank = 47; },
        +[](Ss2dSize& size) { size.rank = 72; }, +[](Ss2dSize& size) { size.channels = 767; },
        +[](Ss2dSize& size) { size.channels_last = false; },
        +[](Ss2dSize& size) { size.dtype = DType::kFloat32; }})
    EXPECT_FALSE(walks(change));
}

// Whatever the batch is: one warp a block does without handing states on.
TEST(Ss2dGpuPlan, SmallPlanesHaveAWarpEach) {
  Ss2dSize size = {.batch = 128,
                   .channels = 384,
                   .height = 14,
                   .width = 14,
                   .states = 1,
                   .rank = 24,
                   .routes = 4,
                   .dtype = DType::kBFloat16,
                   .out_dtype = DType::kBFloat16};
  for (const int64_t batch : {1, 128}) {
    size.batch = batch;
    const Ss2dGpuPlan ahead = plan(size, Pass::kForward, find_gpu("h100"));
    EXPECT_EQ(ahead.block, 32);
    EXPECT_EQ(ahead.blocks_per_multiprocessor, 16);
    EXPECT_EQ(plan(size, Pass::kBackward, find_gpu("h100")).block, 32);
  }
  size.height = size.width = 28;
  EXPECT_GT(plan(size, Pass::kForward, find_gpu("h100")).block, 32);
}

TEST(Ss2dGpuPlan, OneRouteNeedsRoomForChunksAlone) {
  const Ss2dSize one = {.batch = 128,
                        .channels = 96,
                        .height = 56,
                        .width = 56,
                        .states = 1,
                        .rank = 6,
                        .routes = 1,
                        .dtype = DType::kBFloat16};
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    const auto sums_chunks = [&](const Ss2dSize& size) {
      return plan(size, pass, find_gpu("h100")).sums_chunks;
    };
    const Ss2dGpuPlan made = plan(one, pass, find_gpu("h100"));
    EXPECT_TRUE(made.sums_chunks);
    EXPECT_GT(made.blocks_per_multiprocessor, 1);
    EXPECT_GT(made.general_shared_bytes, int64_t{56 * 56 * kGpuChannels * 4});
    // A batch that leaves multiprocessors empty: all warps that there may be for each block.
    Ss2dSize few = one, two = one, large = one, wide = one, floats = one;
    few.batch = 1;
    const int64_t warps = pass == Pass::kForward ? kGpuMaxWarps : kGpuPackedWarps;
    EXPECT_EQ(plan(few, pass, find_gpu("h100")).block, 32 * warps);
    two.routes = 2;
    EXPECT_FALSE(sums_chunks(two));
    large.height = 200;
    EXPECT_FALSE(sums_chunks(large));
    wide.rank = kGpuChunkNumbers;
    EXPECT_FALSE(sums_chunks(wide));
    floats.dtype = DType::kFloat32;
    EXPECT_FALSE(sums_chunks(floats));
  }
}

TEST(Ss2dGpuPlan, KeepsStatesInTheTilesOfLargeDevices) {
  for (const int64_t side : {7, 56, 60, 64, 96, 128, 256, 1000})
    for (const int64_t rank : {6, 48, 96}) {
      const Ss2dSize size = {.batch = 4,
                             .channels = 96,
                             .height = side,
                             .width = side,
                             .states = 1,
                             .rank = rank,
                             .routes = 4,
                             .dtype = DType::kBFloat16,
                             .kept_states = true};
      SCOPED_TRACE(side);
      for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
        const Ss2dGpuPlan large = plan(size, pass, find_gpu("h100"));
        EXPECT_TRUE(large.kept);
        EXPECT_EQ(gpu_kept_states(size), 4 * large.table_floats(size));
        const Ss2dGpuPlan small = plan(size, pass, find_gpu("rtx3090"));
        EXPECT_EQ(small.kept, small.tile_height == large.tile_height);
        EXPECT_EQ(small.kept, side != 56) << small.tile_height;
      }
    }
}

TEST(Ss2dGpuPlan, StatesWithoutNumberFitEveryDevice) {
  const Ss2dSize size = {.batch = 1,
                         .channels = 16,
                         .height = 56,
                         .width = 56,
                         .states = 100000,
                         .rank = 1,
                         .routes = 4};
  for (const Gpu& gpu : known_gpus()) {
    const Ss2dGpuPlan ahead = plan(size, Pass::kForward, gpu);
    EXPECT_LE(ahead.shared_bytes, gpu.shared_per_block) << gpu.name;
    EXPECT_FALSE(ahead.shared_carries) << gpu.name;
  }
}

TEST(Ss2dGpuPlan, RefusesADeviceWithTooLittleSharedMemory) {
  Gpu gpu = find_gpu("a100");
  gpu.shared_per_block = 4096;
  const Ss2dSize size = {
      .batch = 1, .channels = 16, .height = 8, .width = 8, .states = 1, .rank = 1, .routes = 4};
  try {
    plan(size, Pass::kForward, gpu);
    FAIL();
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("a100 has 4096"), std::string::npos) << error.what();
  }
}

// Both products from one reading wherever a block's shared memory allows it: with smaller tiles where it is short.
TEST(Ss2dGpuPlan, MultipliesDeltasGradientWithTheSharedMemoryThatThereIs) {
  Ss2dSize size = {.batch = 8,
                   .channels = 384,
                   .height = 14,
                   .width = 14,
                   .states = 1,
                   .rank = 24,
                   .routes = 4,
                   .dtype = DType::kBFloat16,
                   .channels_last = true};
  for (const Gpu& gpu : known_gpus()) {
    const Ss2dGpuPlan made = plan(size, Pass::kBackward, gpu);
    SCOPED_TRACE(gpu.name);
    EXPECT_TRUE(made.at_once);
    EXPECT_EQ(made.product_side, gpu.shared_per_block < 106 * 1024 ? 64 : 96);
    EXPECT_EQ(made.product_columns, 32);
  }
  EXPECT_EQ(gpu_products_at_once(24, 384, 48 * 1024).side, 0);
}

// Where delta's gradient is stored, a slice of the batch is two waves of blocks if there are as many images and one wave leaves
// no fewer places empty; one wave with several states, and as much as a goal allows where two are too much.
TEST(Ss2dGpuPlan, SlicesOfDeltasGradientAreTwoWaves) {
  const Gpu& gpu = find_gpu("h200");
  struct Expected {
    int64_t batch, channels, side, states, routes, waves;
  };
  for (const auto& [batch, channels, side, states, routes, waves] :
       {Expected{128, 192, 28, 1, 4, 2},
        {1000, 192, 28, 1, 4, 2},
        {128, 192, 28, 16, 4, 1},
        {128, 384, 14, 1, 4, 1},
        {128, 96, 56, 1, 4, 2},
        {128, 96, 56, 1, 16, 1}}) {
    const Ss2dSize size = {.batch = batch,
                           .channels = channels,
                           .height = side,
                           .width = side,
                           .states = states,
                           .rank = 12,
                           .routes = routes,
                           .dtype = DType::kBFloat16};
    const Ss2dGpuPlan made = plan(size, Pass::kBackward, gpu);
    SCOPED_TRACE(to_string(made));
    ASSERT_TRUE(made.stores_delta);
    const int64_t wave =
        gpu.multiprocessors * made.blocks_per_multiprocessor / made.blocks_an_image();
    EXPECT_EQ(made.slice, waves * wave);
  }
  Ss2dSize few = {.batch = 32,
                  .channels = 192,
                  .height = 28,
                  .width = 28,
                  .states = 1,
                  .rank = 12,
                  .routes = 4,
                  .dtype = DType::kBFloat16};
  EXPECT_EQ(plan(few, Pass::kBackward, gpu).slice, 32);
}

}  // namespace
}  // namespace linescan::testing
