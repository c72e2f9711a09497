#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "linescan/train/report_scale.h"
#include "linescan/train/report_text.h"
#include "linescan/train/svg.h"

namespace linescan::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::string> labels(const Scale& scale) {
  std::vector<std::string> texts;
  for (const double tick : scale.ticks) texts.push_back(scale.text(tick));
  return texts;
}

using Labels = std::vector<std::string>;

TEST(Scale, TicksAreRoundNumbers) {
  EXPECT_EQ(labels(nice_scale(0, 2.37, 5)), (Labels{"0.0", "0.5", "1.0", "1.5", "2.0", "2.5"}));
  EXPECT_EQ(labels(nice_scale(0, 1345, 4)), (Labels{"0", "500", "1,000", "1,500"}));
  EXPECT_EQ(labels(nice_scale(-0.031, 0.042, 4)),
            (Labels{"-0.04", "-0.02", "0.00", "0.02", "0.04", "0.06"}));
  EXPECT_EQ(labels(tight_scale(0, 1240, 7, 1)),
            (Labels{"0", "200", "400", "600", "800", "1,000", "1,200"}));
  EXPECT_EQ(labels(tight_scale(0, 2, 7, 1)), (Labels{"0", "1", "2"}));
  EXPECT_EQ(labels(tight_scale(0, 61000, 7, 1)),
            (Labels{"0", "10k", "20k", "30k", "40k", "50k", "60k"}));
  EXPECT_EQ(labels(log_scale(0.3, 40)), (Labels{"0.1", "1", "10", "100"}));
  EXPECT_EQ(labels(log_scale(2, 8)), (Labels{"1", "2", "5", "10"}));
}

TEST(Scale, ContainsItsDataWhateverTheSize) {
  for (const double size : {1e-12, 3e-5, 0.7, 1.0, 12.0, 9999.0, 4e9, 1e25})
    for (const double low : {0.0, -0.4, 0.95}) {
      const Scale scale = nice_scale(low * size, size, 5);
      EXPECT_LE(scale.at(size), 1 + 1e-9) << size;
      EXPECT_GE(scale.at(low * size), -1e-9) << size;
      EXPECT_GE(scale.ticks.size(), 2u) << size;
      EXPECT_LE(scale.ticks.size(), 8u) << size;
    }
}

TEST(Scale, StrangeEndsStillGiveAScale) {
  for (const double low : {0.0, 5.0, -5.0, kNan, kInfinity, -kInfinity, 1e308})
    for (const double high : {0.0, 5.0, -5.0, kNan, kInfinity, -kInfinity, -1e308}) {
      const Scale scale = nice_scale(low, high, 5);
      EXPECT_LT(scale.low, scale.high) << low << " " << high;
      EXPECT_GE(scale.ticks.size(), 2u) << low << " " << high;
      EXPECT_LE(scale.ticks.size(), 12u) << low << " " << high;
    }
}

TEST(Scale, LogarithmicHasNoPlaceForZero) {
  const Scale scale = log_scale(0.1, 10);
  EXPECT_NEAR(scale.at(1), 0.5, 1e-12);
  EXPECT_TRUE(std::isnan(scale.at(0)));
  EXPECT_TRUE(std::isnan(scale.at(-1)));
}

TEST(Text, Numbers) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(-1234567), "-1,234,567");
  EXPECT_EQ(count_text(-123), "-123");
  EXPECT_EQ(percent_text(0.91234), "91.2\u00a0%");
  EXPECT_EQ(percent_text(kNan), "–");
  EXPECT_EQ(value_text(0.25471), "0.255");
  EXPECT_EQ(value_text(1331.2), "1,331");
  EXPECT_EQ(value_text(2e-5), "2e-05");
  EXPECT_EQ(value_text(kInfinity), "–");
  EXPECT_EQ(short_count_text(412826), "413\u00a0k");
  EXPECT_EQ(short_count_text(30.2e6), "30.2\u00a0M");
  EXPECT_EQ(short_count_text(999600), "1\u00a0M");
}

TEST(Text, Durations) {
  EXPECT_EQ(duration_text(0.42), "0.42\u00a0s");
  EXPECT_EQ(duration_text(59.4), "59\u00a0s");
  EXPECT_EQ(duration_text(59.6), "1\u00a0min 0\u00a0s");
  EXPECT_EQ(duration_text(118.05), "1\u00a0min 58\u00a0s");
  EXPECT_EQ(duration_text(7380), "2\u00a0h 03\u00a0min");
  EXPECT_EQ(duration_text(kNan), "–");
}

TEST(Text, ShortenCountsCharactersNotBytes) {
  EXPECT_EQ(shorten("Käseküchlein", 12), "Käseküchlein");
  EXPECT_EQ(shorten("Käseküchlein", 5), "Käse…");
  EXPECT_EQ(length_of("Käse…"), 5u);
}

TEST(Text, EscapeLeavesNoMarkup) {
  EXPECT_EQ(escape_html("<a href=\"x\">&'\n"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39; ");
}

TEST(Curves, ThinningKeepsTheExtremes) {
  std::vector<Point> points;
  for (int i = 0; i < 10000; ++i) points.push_back({double(i), std::sin(i / 50.0)});
  points[4321].y = 9;
  points[8765].y = -9;
  const std::vector<Point> kept = thin(points, 200);
  EXPECT_LE(kept.size(), 200u);
  EXPECT_GE(kept.size(), 100u);
  int spikes = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    spikes += std::abs(kept[i].y) == 9;
    EXPECT_LT(i > 0 ? kept[i - 1].x : -1, kept[i].x);
  }
  EXPECT_EQ(spikes, 2);
}

TEST(Curves, SmoothingKeepsStraightLinesAndMeans) {
  std::vector<Point> points;
  for (int i = 0; i < 100; ++i) points.push_back({double(i), 2.0 * i + (i % 2 ? 1 : -1)});
  const std::vector<Point> smoothed = smooth(points, 0.2);
  ASSERT_EQ(smoothed.size(), points.size());
  EXPECT_EQ(smoothed[0].y, points[0].y);
  for (int i = 10; i < 90; ++i) EXPECT_NEAR(smoothed[i].y, 2.0 * i, 0.1) << i;
  EXPECT_EQ(smooth({{1, 5}}, 0.5)[0].y, 5);
  EXPECT_TRUE(smooth({}, 0.5).empty());
}

LineChart small_chart(std::vector<Point> points) {
  LineChart chart;
  chart.title = "Loss";
  chart.x = tight_scale(0, 10, 5);
  chart.y = nice_scale(0, 1, 5);
  chart.tick_text = chart.value_text = value_text;
  chart.series = {{"training", "train", std::move(points), Series::Mark::kLine}};
  return chart;
}

TEST(LineChart, PlacesPointsAndSkipsWhatIsNotFinite) {
  const std::string svg =
      line_chart(small_chart({{0, 1}, {5, kNan}, {5, 0.5}, {7, kInfinity}, {10, 0}}));
  EXPECT_NE(svg.find("d=\"M0.0 0.0L500.0 500.0L1000.0 1000.0\""), std::string::npos) << svg;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find("\"x\":[0.00,50.00,100.00]"), std::string::npos) << svg;
}

TEST(LineChart, OnePointIsADot) {
  const std::string svg = line_chart(small_chart({{5, 0.5}}));
  EXPECT_EQ(svg.find("<path"), std::string::npos);
  EXPECT_NE(svg.find("cx=\"50.00%\" cy=\"50.00%\""), std::string::npos) << svg;
}

TEST(Bar, StaysWithinItsTrack) {
  EXPECT_NE(bar(1.7, kNan).find("width=\"100.00%\""), std::string::npos);
  EXPECT_EQ(bar(kNan, kNan).find("fill\""), std::string::npos);
  EXPECT_NE(bar(0.25, 0.5).find("x1=\"50.00%\""), std::string::npos);
}

}  // namespace
}  // namespace linescan::report
