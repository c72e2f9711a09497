#include "linescan/train/state.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"

namespace linescan {
namespace {

TrainingState sample() {
  TrainingState state;
  state.step = 1234567890123;
  state.sampler = {3, 17};
  state.seconds = 1.0 / 3;
  state.progress = 0.1;
  state.evaluation_due = true;
  state.best_top1 = 0.8765;
  state.best_step = 1200;
  state.use_average = true;
  state.interval = {7, 500, 1e-17 + 2, 0.7};
  state.rng = {0, 1, 127, 128, 255};
  state.threads = 2;
  state.instruction_set = "AVX3";
  state.device = "NVIDIA H200";
  state.precision = "fp16";
  state.device_rng = {7, 255};
  state.loss_scale = 65536;
  state.loss_scale_steps = 12;
  state.version = "1.2.3";
  return state;
}

TEST(State, SurvivesJsonText) {
  const nlohmann::json written = to_json(sample());
  const TrainingState read = state_from_json(nlohmann::json::parse(written.dump()), "test");
  EXPECT_EQ(to_json(read), written);
  EXPECT_EQ(read.rng, sample().rng);
  EXPECT_EQ(read.sampler, sample().sampler);
  EXPECT_EQ(read.seconds, sample().seconds);
  EXPECT_EQ(read.interval.loss, sample().interval.loss);
  EXPECT_TRUE(read.use_average);
  EXPECT_EQ(read.device_rng, sample().device_rng);
  EXPECT_EQ(read.loss_scale, sample().loss_scale);
}

TEST(State, FilesFromBeforeDevicesAreOfTheCpu) {
  nlohmann::json old = to_json(sample());
  old.erase("compute");
  const TrainingState read = state_from_json(old, "test");
  EXPECT_EQ(read.device, "cpu");
  EXPECT_EQ(read.precision, "fp32");
  EXPECT_TRUE(read.device_rng.empty());
}

TEST(State, RefusesWhatIsMissingOrOfAnotherType) {
  const nlohmann::json good = to_json(sample());
  for (const auto& item : good.items()) {
    if (item.key() == "compute") continue;
    nlohmann::json without = good;
    without.erase(item.key());
    EXPECT_THROW(state_from_json(without, "test"), InvalidArgument) << item.key();
  }
  for (const char* key : {"step", "rng", "interval", "threads", "version"}) {
    nlohmann::json other = good;
    other[key] = nlohmann::json::array();
    EXPECT_THROW(state_from_json(other, "test"), InvalidArgument) << key;
  }
  nlohmann::json bad_digits = good;
  bad_digits["rng"] = "0g";
  EXPECT_THROW(state_from_json(bad_digits, "test"), InvalidArgument);
}

}  // namespace
}  // namespace linescan
