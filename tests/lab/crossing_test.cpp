#include "linescan/lab/crossing.h"

#include <gtest/gtest.h>

#include <cmath>

namespace linescan::lab {
namespace {

TEST(Crossing, IsFoundBetweenTwoSizes) {
  // Ours falls with the square of the size, theirs with its fourth power: equal at 400.
  std::vector<RatePoint> points;
  for (const double size : {200, 300, 600, 800})
    points.push_back({size, std::pow(400 / size, 2), std::pow(400 / size, 4), 0});
  const std::vector<Crossing> crossings = find_crossings(points);
  ASSERT_EQ(crossings.size(), 1u);
  EXPECT_TRUE(crossings[0].we_take_over);
  EXPECT_NEAR(crossings[0].size, 400, 1e-9);  // power laws are straight on logarithmic scales
  EXPECT_EQ(describe_crossings(points, "ours", "attention"),
            "ours overtakes attention at about 400 pixels");
}

TEST(Crossing, NamesEveryChangeOfTheLeadInOrder) {
  const std::vector<RatePoint> points = {{100, 2, 1, 0}, {200, 1, 2, 0}, {400, 4, 2, 0}};
  const std::vector<Crossing> crossings = find_crossings(points);
  ASSERT_EQ(crossings.size(), 2u);
  EXPECT_FALSE(crossings[0].we_take_over);
  EXPECT_TRUE(crossings[1].we_take_over);
  EXPECT_NEAR(crossings[0].size, 100 * std::sqrt(2.0), 1e-9);
  EXPECT_EQ(describe_crossings(points, "ours", "conv"),
            "ours is overtaken by conv at about 141 pixels, overtakes conv at about 283 pixels");
}

TEST(Crossing, LeadsWithinTheNoiseAndMissingFiguresChangeNothing) {
  const std::vector<RatePoint> points = {
      {100, 1, 2, 0.1}, {200, 1.05, 1, 0.1}, {300, 0, 1, 0}, {400, 1, 3, 0.1}};
  EXPECT_TRUE(find_crossings(points).empty());
  EXPECT_EQ(describe_crossings(points, "ours", "conv"),
            "no crossing: ours is behind conv wherever there is a lead");
}

TEST(Crossing, IsPlacedByThePointsInBetweenThatAreTooCloseToCall) {
  const std::vector<RatePoint> points = {{100, 1, 2, 0.1}, {200, 1, 1.05, 0.1}, {300, 2, 1, 0.1}};
  const std::vector<Crossing> crossings = find_crossings(points);
  ASSERT_EQ(crossings.size(), 1u);
  EXPECT_GT(crossings[0].size, 200);
  EXPECT_LT(crossings[0].size, 215);
}

TEST(Crossing, SaysSoWhenThereIsNone) {
  EXPECT_EQ(describe_crossings({{100, 2, 1, 0}, {200, 3, 1, 0}}, "ours", "conv"),
            "no crossing: ours is ahead of conv wherever there is a lead");
  EXPECT_EQ(describe_crossings({{100, 1, 1, 0}}, "ours", "conv"),
            "no crossing: neither ours nor conv leads at any size");
  EXPECT_EQ(describe_crossings({}, "ours", "conv"),
            "no crossing: neither ours nor conv leads at any size");
}

}  // namespace
}  // namespace linescan::lab
