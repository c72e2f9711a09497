#include "linescan/train/session.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "linescan/base/error.h"
#include "linescan/files/toml.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::read_text;
using testing::TemporaryFolder;
using testing::tiny_options;

// A session that a "signal" ends behind each of the given steps, and that is resumed then.
SessionResult run_interrupted(const Assignments& options, const fs::path& run,
                              std::vector<int64_t> stops) {
  std::atomic<int> signal{0};
  std::size_t next = 0;
  TrainingHooks hooks;
  hooks.stop_signal = &signal;
  hooks.progress = [&](const ProgressFacts& facts) {
    if (next < stops.size() && facts.step == stops[next]) {
      signal = 15;
      ++next;
    }
  };
  SessionResult result = run_session({options, run, false}, hooks);
  while (result.end == SessionEnd::kStopped) {
    signal = 0;
    result = run_session({{}, run, true}, hooks);
  }
  EXPECT_EQ(next, stops.size());
  return result;
}

json without_times(json object) {
  for (const char* key : {"seconds", "images_per_s", "training_seconds", "memory_bytes"})
    object.erase(key);
  return object;
}

std::vector<json> metrics_without_times(const fs::path& run) {
  std::istringstream text(read_text(run / "metrics.jsonl"));
  std::vector<json> all;
  for (std::string line; std::getline(text, line);) all.push_back(without_times(json::parse(line)));
  return all;
}

void expect_equal_runs(const fs::path& a, const fs::path& b) {
  for (const char* link : {"last", "best"}) {
    const fs::path one = find_checkpoint(a, link), two = find_checkpoint(b, link);
    EXPECT_EQ(one.filename(), two.filename());
    for (const char* file : {"model.safetensors", "ema.safetensors", "optimizer.safetensors"}) {
      EXPECT_GT(fs::file_size(one / file), 1000u);
      EXPECT_TRUE(read_text(one / file) == read_text(two / file)) << link << " " << file;
    }
  }
  EXPECT_EQ(metrics_without_times(a), metrics_without_times(b));
  EXPECT_EQ(without_times(json::parse(read_text(a / "summary.json"))),
            without_times(json::parse(read_text(b / "summary.json"))));
  EXPECT_EQ(read_text(a / "evaluation.json"), read_text(b / "evaluation.json"));
}

// 132 training images in batches of 13: 10 steps an epoch, 20 in all, evaluations at 10 and 20.
Assignments ten_steps_an_epoch(const TemporaryFolder& folder) {
  Assignments options = tiny_options(testing::write_tiny_data(folder.path()));
  options.emplace_back("batch", "13");
  return options;
}

TEST(Session, TenStepsResumedAreTheSameBytesAsTwenty) {
  const TemporaryFolder folder;
  const Assignments options = ten_steps_an_epoch(folder);
  const fs::path whole = folder.path() / "whole";
  ASSERT_EQ(run_session({options, whole, false}, {}).end, SessionEnd::kFinished);
  // In the middle of an epoch and of an interval of metrics; at the end of an epoch, where the
  // evaluation is cut off and made up for; every step; at the very end.
  std::vector<int64_t> every_step(20);
  for (int64_t i = 0; i < 20; ++i) every_step[i] = i + 1;
  int number = 0;
  for (const std::vector<int64_t>& stops :
       {std::vector<int64_t>{7}, {10}, {4, 16}, every_step, {20}}) {
    const fs::path resumed = folder.path() / std::to_string(number++);
    ASSERT_EQ(run_interrupted(options, resumed, stops).end, SessionEnd::kFinished);
    expect_equal_runs(whole, resumed);
  }
}

TEST(Session, AnotherSeedGivesOtherBytes) {
  // Otherwise the test above would prove nothing.
  const TemporaryFolder folder;
  Assignments options = ten_steps_an_epoch(folder);
  run_session({options, folder.path() / "a", false}, {});
  options.emplace_back("seed", "2");
  run_session({options, folder.path() / "b", false}, {});
  for (const char* file : {"model.safetensors", "ema.safetensors", "optimizer.safetensors"})
    EXPECT_FALSE(read_text(folder.path() / "a/checkpoints/last" / file) ==
                 read_text(folder.path() / "b/checkpoints/last" / file));
}

TEST(Session, LearnsTheTinyDataAndWritesEveryFile) {
  const TemporaryFolder folder;
  Assignments options = tiny_options(testing::write_tiny_data(folder.path()));
  options.insert(options.end(),
                 {{"epochs", "12"}, {"flip", "false"}, {"shift", "1"}, {"drop_path", "0"}});
  const fs::path run = folder.path() / "run";
  const SessionResult result = run_session({options, run, false}, {});
  EXPECT_EQ(result.run, run);
  EXPECT_GT(result.test_top1, 0.9);
  for (const char* file :
       {"config.toml", "machine.json", "metrics.jsonl", "summary.json", "evaluation.json",
        "report.html", "checkpoints/last/state.json", "checkpoints/best/model.safetensors"})
    EXPECT_TRUE(fs::exists(run / file)) << file;

  const json summary = json::parse(read_text(run / "summary.json"));
  for (const char* key : {"test_top1", "test_top5", "test_loss", "training_seconds", "images_per_s",
                          "steps", "epochs", "best_val_top1", "model", "parameters"})
    EXPECT_TRUE(summary.contains(key)) << key;
  EXPECT_EQ(summary["test_top1"], result.test_top1);
  EXPECT_EQ(summary["steps"], 12 * (132 / 8));
  const json evaluation = json::parse(read_text(run / "evaluation.json"));
  EXPECT_EQ(evaluation["images"], 24);
  EXPECT_EQ(evaluation["top1"], result.test_top1);
  const json machine = json::parse(read_text(run / "machine.json"));
  for (const char* key :
       {"cpu", "cores", "threads", "memory_gb", "simd", "os", "linescan", "libtorch", "compiler"})
    EXPECT_TRUE(machine.contains(key)) << key;

  // The weights that are used are those that the summary speaks of.
  TrainedModel best = load_trained(find_checkpoint(run, "best"));
  EXPECT_FALSE(best.network->is_training());
  EXPECT_EQ(best.classes.size(), 4u);
  EXPECT_EQ(best.height, testing::kTinySide);
}

TEST(Session, ConfigTomlRepeatsTheRun) {
  const TemporaryFolder folder;
  const Assignments options = ten_steps_an_epoch(folder);
  run_session({options, folder.path() / "a", false}, {});
  const Assignments stored = read_toml_options(folder.path() / "a" / "config.toml");
  run_session({stored, folder.path() / "b", false}, {});
  expect_equal_runs(folder.path() / "a", folder.path() / "b");
}

TEST(Session, AMinutesBudgetCountsTrainingSeconds) {
  const TemporaryFolder folder;
  Assignments options = tiny_options(testing::write_tiny_data(folder.path()));
  options.emplace_back("minutes", "0.01");
  run_session({options, folder.path() / "run", false}, {});
  const json summary = json::parse(read_text(folder.path() / "run" / "summary.json"));
  EXPECT_GE(summary["training_seconds"], 0.6);
  EXPECT_LT(summary["training_seconds"], 1.6);  // one step more, on a machine that may be busy
}

TEST(Session, RefusesWithoutLeavingAFolder) {
  const TemporaryFolder folder;
  const Assignments good = ten_steps_an_epoch(folder);
  const fs::path run = folder.path() / "run";
  for (const auto& bad : Assignments{{"lr", "nan"},
                                     {"batch", "133"},
                                     {"classes", "0"},
                                     {"classes", "3"},
                                     {"model", "vmamba"},
                                     {"data", "/nowhere"},
                                     {"backbone", "true"},
                                     {"states", "0"}}) {
    Assignments options = good;
    options.push_back(bad);
    EXPECT_THROW(run_session({options, run, false}, {}), InvalidArgument)
        << bad.first << "=" << bad.second;
    EXPECT_FALSE(fs::exists(run));
  }
}

TEST(Session, RefusesAFolderThatExistsAndResumesOnlyRuns) {
  const TemporaryFolder folder;
  const Assignments options = ten_steps_an_epoch(folder);
  const fs::path run = folder.path() / "run";
  EXPECT_THROW(run_session({options, run, true}, {}), InvalidArgument);
  EXPECT_THROW(run_session({options, std::nullopt, true}, {}), InvalidArgument);
  run_session({options, run, false}, {});
  const std::string summary = read_text(run / "summary.json");
  EXPECT_THROW(run_session({options, run, false}, {}), InvalidArgument);
  EXPECT_EQ(run_session({options, run, true}, {}).end, SessionEnd::kWasFinished);
  EXPECT_EQ(read_text(run / "summary.json"), summary);
  fs::remove(run / "report.html");
  EXPECT_EQ(run_session({options, run, true}, {}).end, SessionEnd::kWasFinished);
  EXPECT_TRUE(fs::exists(run / "report.html"));
  EXPECT_THROW(run_session({{}, run / "checkpoints" / "last", true}, {}), InvalidArgument);
}

TEST(Session, WarnsWhenTheMachineDiffers) {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  std::atomic<int> signal{2};
  std::vector<std::string> messages;
  TrainingHooks hooks;
  hooks.stop_signal = &signal;
  hooks.message = [&](const std::string& text) { messages.push_back(text); };
  ASSERT_EQ(run_session({ten_steps_an_epoch(folder), run, false}, hooks).end, SessionEnd::kStopped);
  messages.clear();
  run_session({{}, run, true}, hooks);
  for (const std::string& text : messages) EXPECT_EQ(text.find("warning"), std::string::npos);
  messages.clear();
  run_session({{{"threads", "2"}}, run, true}, hooks);
  ASSERT_FALSE(messages.empty());
  EXPECT_NE(messages[0].find("warning: the run was made with 1 threads"), std::string::npos)
      << messages[0];
  EXPECT_THROW(run_session({{{"lr", "0.5"}}, run, true}, hooks), InvalidArgument);
}

TEST(Session, ADamagedCheckpointIsNamed) {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  std::atomic<int> signal{2};
  TrainingHooks hooks;
  hooks.stop_signal = &signal;
  run_session({ten_steps_an_epoch(folder), run, false}, hooks);
  const fs::path file = find_checkpoint(run, "last") / "optimizer.safetensors";
  fs::resize_file(file, fs::file_size(file) - 1);
  try {
    run_session({{}, run, true}, hooks);
    FAIL() << "the damage went unnoticed";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("optimizer.safetensors has"), std::string::npos);
  }
}

TEST(Session, ABadLossStopsTheRunAndNamesItsCause) {
  const TemporaryFolder folder;
  Assignments options = ten_steps_an_epoch(folder);
  options.insert(options.end(), {{"lr", "1e30"}, {"warmup", "0"}, {"clip", "0"}});
  const fs::path run = folder.path() / "run";
  try {
    run_session({options, run, false}, {});
    FAIL() << "no error";
  } catch (const NotFinite& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("step "), std::string::npos) << text;
    EXPECT_TRUE(text.find("first bad activation") != std::string::npos ||
                text.find("first bad gradient") != std::string::npos ||
                text.find("parameter ") != std::string::npos)
        << text;
    EXPECT_NE(text.find("checkpoints/step-0"), std::string::npos) << text;
  }
  EXPECT_NO_THROW(load_trained(find_checkpoint(run, "last")));
}

TEST(Session, KeepsSoManyCheckpoints) {
  const TemporaryFolder folder;
  Assignments options = ten_steps_an_epoch(folder);
  options.insert(options.end(), {{"epochs", "6"}, {"keep", "2"}});
  const fs::path run = folder.path() / "run";
  run_session({options, run, false}, {});
  std::set<std::string> folders;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints"))
    if (!entry.is_symlink()) folders.insert(entry.path().filename());
  EXPECT_EQ(folders,
            (std::set<std::string>{"step-50", "step-60", find_checkpoint(run, "best").filename()}));
}

}  // namespace
}  // namespace linescan
