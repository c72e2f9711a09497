#include "linescan/train/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "linescan/base/error.h"

namespace linescan {
namespace {

std::vector<int64_t> sorted(std::vector<int64_t> order) {
  std::sort(order.begin(), order.end());
  return order;
}

TEST(Sampler, PermutationHoldsEveryImageOnce) {
  std::vector<int64_t> all(101);
  std::iota(all.begin(), all.end(), int64_t{0});
  for (int64_t epoch : {0, 1, 7}) EXPECT_EQ(sorted(epoch_permutation(101, 3, epoch)), all);
}

TEST(Sampler, PermutationDependsOnSeedAndEpochAlone) {
  EXPECT_EQ(epoch_permutation(50, 1, 2), epoch_permutation(50, 1, 2));
  EXPECT_NE(epoch_permutation(50, 1, 2), epoch_permutation(50, 1, 3));
  EXPECT_NE(epoch_permutation(50, 1, 2), epoch_permutation(50, 2, 2));
}

TEST(Sampler, PermutationPutsEveryImageEverywhere) {
  // Over 4000 epochs each of the 8 images is first about 500 times; 6 standard deviations are 125.
  std::vector<int64_t> first(8);
  for (int64_t epoch = 0; epoch < 4000; ++epoch) ++first[epoch_permutation(8, 9, epoch)[0]];
  for (int64_t count : first) EXPECT_NEAR(count, 500, 125);
}

TEST(Sampler, LeavesOutTheLastPartialBatch) {
  Sampler sampler(10, 4, 1);
  ASSERT_EQ(sampler.batches_per_epoch(), 2);
  const std::vector<int64_t> order = epoch_permutation(10, 1, 0);
  for (int64_t batch = 0; batch < 2; ++batch) {
    const auto got = sampler.next();
    EXPECT_TRUE(std::equal(got.begin(), got.end(), order.begin() + 4 * batch));
    EXPECT_EQ(got.size(), 4u);
  }
  EXPECT_EQ(sampler.position(), (SamplerPosition{1, 0}));
}

TEST(Sampler, GoesOnFromAnyPosition) {
  Sampler whole(23, 5, 4);
  for (int64_t skipped = 0; skipped < 9; ++skipped) {
    Sampler resumed(23, 5, 4);
    resumed.seek(whole.position());
    const auto expected = whole.next(), got = resumed.next();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), got.begin(), got.end())) << skipped;
  }
}

TEST(Sampler, RefusesABatchLargerThanTheData) {
  EXPECT_THROW(Sampler(10, 11, 1), InvalidArgument);
  EXPECT_THROW(Sampler(10, 0, 1), InvalidArgument);
  EXPECT_THROW(Sampler(0, 1, 1), InvalidArgument);
  EXPECT_NO_THROW(Sampler(10, 10, 1));
}

TEST(Sampler, RefusesAPositionOutsideOfAnEpoch) {
  Sampler sampler(10, 4, 1);
  EXPECT_THROW(sampler.seek({0, 2}), InvalidArgument);
  EXPECT_THROW(sampler.seek({-1, 0}), InvalidArgument);
}

}  // namespace
}  // namespace linescan
