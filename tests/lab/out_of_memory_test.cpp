#include "linescan/lab/out_of_memory.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace linescan::lab {
namespace {

using Batches = std::vector<int64_t>;

// What is tried and what is said when batches of more than `most` run out of memory.
struct Trial {
  Batches tried, said;
  int64_t result;
};
Trial halve(int64_t batch, int64_t most) {
  Trial trial;
  trial.result = run_halving(
      batch,
      [&](int64_t tried) {
        trial.tried.push_back(tried);
        if (tried > most) TORCH_CHECK_WITH(OutOfMemoryError, false, "injected");
      },
      [&](int64_t too_large) { trial.said.push_back(too_large); });
  return trial;
}

TEST(OutOfMemory, HalvesTheBatchUntilItFits) {
  const Trial trial = halve(48, 7);
  EXPECT_EQ(trial.result, 6);
  EXPECT_EQ(trial.tried, (Batches{48, 24, 12, 6}));
  EXPECT_EQ(trial.said, (Batches{48, 24, 12}));
}

TEST(OutOfMemory, LeavesABatchThatFitsAlone) {
  const Trial trial = halve(48, 48);
  EXPECT_EQ(trial.result, 48);
  EXPECT_TRUE(trial.said.empty());
}

TEST(OutOfMemory, GivesUpBelowOneImage) {
  const Trial trial = halve(5, 0);
  EXPECT_EQ(trial.result, 0);
  EXPECT_EQ(trial.tried, (Batches{5, 2, 1}));
  EXPECT_EQ(trial.said, (Batches{5, 2, 1}));
}

TEST(OutOfMemory, OtherErrorsPass) {
  const auto fail = [](int64_t) { throw std::runtime_error("a wrong shape"); };
  EXPECT_THROW(run_halving(8, fail, [](int64_t) { FAIL(); }), std::runtime_error);
}

}  // namespace
}  // namespace linescan::lab
