#include "linescan/lab/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "linescan/base/error.h"

namespace linescan::lab {
namespace {

TEST(Statistics, OfKnownValues) {
  const Statistics s = summarise({4, 1, 3, 2, 5, 6, 7, 8, 9, 10, 11});
  EXPECT_EQ(s.count, 11);
  EXPECT_DOUBLE_EQ(s.median, 6);
  EXPECT_DOUBLE_EQ(s.mean, 6);
  EXPECT_DOUBLE_EQ(s.p10, 2);
  EXPECT_DOUBLE_EQ(s.p90, 10);
  EXPECT_DOUBLE_EQ(s.least, 1);
  EXPECT_DOUBLE_EQ(s.most, 11);
  EXPECT_DOUBLE_EQ(s.deviation, std::sqrt(11.0));
  EXPECT_DOUBLE_EQ(s.variation(), std::sqrt(11.0) / 6);
}

TEST(Statistics, LieBetweenValuesWhereNoneIsInTheMiddle) {
  const Statistics s = summarise({1, 2, 4, 9});
  EXPECT_DOUBLE_EQ(s.median, 3);
  EXPECT_DOUBLE_EQ(s.p10, 1.3);
  EXPECT_DOUBLE_EQ(s.mean, 4);
}

TEST(Statistics, OneValueHasNoSpreadAndNoneIsRefused) {
  const Statistics s = summarise({2.5});
  EXPECT_DOUBLE_EQ(s.median, 2.5);
  EXPECT_DOUBLE_EQ(s.p90, 2.5);
  EXPECT_DOUBLE_EQ(s.deviation, 0);
  EXPECT_THROW(summarise({}), InvalidArgument);
}

}  // namespace
}  // namespace linescan::lab
