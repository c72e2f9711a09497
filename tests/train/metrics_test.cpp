#include "linescan/train/metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

using nlohmann::json;

std::vector<json> lines(const std::filesystem::path& run) {
  std::istringstream text(testing::read_text(run / "metrics.jsonl"));
  std::vector<json> all;
  for (std::string line; std::getline(text, line);) all.push_back(json::parse(line));
  return all;
}

TrainMetrics train_at(int64_t step) {
  return {.step = step,
          .epoch = 1,
          .loss = 0.5,
          .accuracy = 0.75,
          .lr = 0.001,
          .images_per_s = 100,
          .grad_norm = 2,
          .seconds = 3};
}

TEST(Metrics, WritesOneObjectALine) {
  const testing::TemporaryFolder run;
  MetricsLog log(run.path(), 0);
  log.write(train_at(10));
  log.write({.step = 10,
             .epoch = 2,
             .seconds = 3,
             .loss = 0.4,
             .top1 = 0.8,
             .top5 = 0.9,
             .ema_top1 = 0.85});
  log.write(
      {.step = 20, .epoch = 3, .seconds = 6, .loss = 0.3, .top1 = 0.9, .top5 = 1, .ema_top1 = {}});
  const std::vector<json> got = lines(run.path());
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0], (json{{"kind", "train"},
                          {"step", 10},
                          {"epoch", 1},
                          {"loss", 0.5},
                          {"accuracy", 0.75},
                          {"lr", 0.001},
                          {"images_per_s", 100.0},
                          {"grad_norm", 2.0},
                          {"seconds", 3.0}}));
  EXPECT_EQ(got[1], (json{{"kind", "eval"},
                          {"step", 10},
                          {"epoch", 2},
                          {"seconds", 3.0},
                          {"val_loss", 0.4},
                          {"val_top1", 0.8},
                          {"val_top5", 0.9},
                          {"ema_val_top1", 0.85}}));
  EXPECT_FALSE(got[2].contains("ema_val_top1"));
}

TEST(Metrics, AResumedRunDropsLaterAndBrokenLines) {
  const testing::TemporaryFolder run;
  {
    MetricsLog log(run.path(), 0);
    for (int64_t step : {5, 10, 15}) log.write(train_at(step));
  }
  testing::write_text(run.path() / "metrics.jsonl",
                      testing::read_text(run.path() / "metrics.jsonl") + "{\"kind\": \"tra");
  MetricsLog log(run.path(), 10);
  log.write(train_at(12));
  std::vector<int64_t> steps;
  for (const json& line : lines(run.path())) steps.push_back(line["step"]);
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 10, 12}));
}

TEST(Metrics, AnEvaluationThatWillBeRepeatedIsDropped) {
  const testing::TemporaryFolder run;
  {
    MetricsLog log(run.path(), 0);
    for (int64_t step : {5, 10}) {
      log.write(train_at(step));
      log.write({.step = step,
                 .epoch = 1,
                 .seconds = 1,
                 .loss = 1,
                 .top1 = 1,
                 .top5 = 1,
                 .ema_top1 = {}});
    }
  }
  { MetricsLog log(run.path(), 10, /*evaluation_due=*/true); }
  EXPECT_EQ(lines(run.path()).size(), 3u);
  EXPECT_EQ(lines(run.path()).back()["kind"], "train");
  { MetricsLog log(run.path(), 5, /*evaluation_due=*/false); }
  EXPECT_EQ(lines(run.path()).size(), 2u);
}

}  // namespace
}  // namespace linescan
