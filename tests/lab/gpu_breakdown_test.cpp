// The breakdown of a step on the GPU. Skipped where there is none, or this build has no code for it. In a
// process of its own, as CTest runs it (compute.h).

#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "linescan/lab/measurement.h"
#include "tests/models/small_model.h"

namespace linescan::lab {
namespace {

// A step so small that the host cannot keep up with the GPU: its kernels take as long as in a recorded
// graph, where nobody waits for the host, and not as long as the host takes to start them.
TEST(GpuBreakdown, TellsTheDevicesTimeAndNotTheHosts) {
  Bench bench;
  try {
    bench.compute = open_compute("cuda", "bf16");
  } catch (const Unsupported& error) {
    GTEST_SKIP() << error.what();
  }
  bench.protocol = {.batch = 8, .warmup = 3, .repetitions = 5, .graph = true};
  const ImageConfig config = small_config();
  for (const StepKind kind : {StepKind::kInference, StepKind::kTraining}) {
    const double graph = measure_network(bench, config, kind, 32).timed.seconds.median;
    Recording recording;
    const double parts = break_down_step(bench, config, kind, 32, &recording).total();
    EXPECT_GT(parts, 0.7 * graph);
    EXPECT_LT(parts, 4 * graph);  // kernels of some microseconds, and events between them
    EXPECT_LT(parts, 0.5 * recording.host_seconds);
  }
}

}  // namespace
}  // namespace linescan::lab
