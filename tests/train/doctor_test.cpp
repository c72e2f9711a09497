// The training doctor: a healthy run passes; every planted fault is noticed by training, leaves the last
// checkpoint intact, and is found and named by a check.

#include "linescan/train/doctor/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/doctor/plant.h"
#include "linescan/train/doctor/plant_data.h"
#include "linescan/train/doctor/planted_task.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

const Finding* find(const Checkup& checkup, const std::string& check) {
  const auto found = std::find_if(checkup.findings.begin(), checkup.findings.end(),
                                  [&](const Finding& finding) { return finding.check == check; });
  return found == checkup.findings.end() ? nullptr : &*found;
}

// A check has this grade and its sentence these words.
void expect_finding(const Checkup& checkup, const std::string& check, Grade grade,
                    std::initializer_list<const char*> words) {
  const Finding* finding = find(checkup, check);
  ASSERT_NE(finding, nullptr) << check << " is missing in\n" << to_text(checkup);
  EXPECT_EQ(finding->grade, grade) << to_text(checkup);
  for (const char* word : words)
    EXPECT_NE(finding->measured.find(word), std::string::npos) << word << " is not in\n"
                                                               << finding->measured;
  EXPECT_EQ(finding->advice.empty(), grade == Grade::kPass);
}

DoctorSettings only(std::vector<std::string> checks) {
  DoctorSettings settings;
  settings.only = std::move(checks);
  return settings;
}

// The fault with some of the checks; training and checkpoint are always there.
Checkup plant(const std::string& fault, std::vector<std::string> checks) {
  PlantSettings settings;
  settings.doctor = only(std::move(checks));
  settings.exit_code = [](const std::exception& error) {
    return dynamic_cast<const NotFinite*>(&error) != nullptr ? 3 : 1;
  };
  settings.hang_code = 4;
  const Checkup checkup = run_plant(fault, settings);
  expect_finding(checkup, "checkpoint", Grade::kPass, {"step-", "is intact"});
  return checkup;
}

TEST(Doctor, AHealthyRunPassesEveryCheck) {
  const testing::TemporaryFolder folder;
  Assignments options = make_plant_data(folder.path());
  options.emplace_back("threads", "1");
  DoctorSettings settings;
  settings.examination.folder = folder.path();
  std::size_t heard = 0;
  settings.found = [&](const Finding&) { ++heard; };
  settings.hang = [](const Checkup& checkup) { ADD_FAILURE() << to_text(checkup); };
  const Checkup checkup = examine(options, settings);
  EXPECT_FALSE(checkup.failed()) << to_text(checkup);
  ASSERT_EQ(checkup.findings.size(), checks().size());
  EXPECT_EQ(heard, checks().size());
  const std::set<std::string> of_this_machine = {"host", "versions", "guards"};
  for (const Finding& finding : checkup.findings) {
    if (of_this_machine.contains(finding.check)) continue;
    EXPECT_EQ(finding.grade, Grade::kPass) << to_text(checkup);
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / ".linescan-doctor"));
}

TEST(Doctor, SequencesAreExaminedToo) {
  const Checkup checkup =
      examine({{"task", "recall"}, {"batch", "2"}, {"layers", "1"}, {"threads", "1"}},
              only({"values", "loss", "reach", "anomaly", "bisection"}));
  ASSERT_EQ(checkup.findings.size(), 5u);
  EXPECT_FALSE(checkup.failed()) << to_text(checkup);
}

// The task of the plants with something wrong in it.
Checkup examine_poisoned(Poison poison, std::vector<std::string> checks) {
  const testing::TemporaryFolder folder;
  const Assignments options = make_plant_data(folder.path());
  RunConfig config = make_config(options);
  const std::unique_ptr<Task> good = make_task(&config, &options);
  return examine(config, PlantedTask(*good, std::move(poison)), only(std::move(checks)));
}

TEST(Doctor, ALabelWithoutAClassIsNamed) {
  const Checkup checkup = examine_poisoned({.batch =
                                                [](std::span<const int64_t> indices, Batch& batch) {
                                                  const auto bad =
                                                      std::find(indices.begin(), indices.end(), 30);
                                                  if (bad != indices.end())
                                                    batch.labels[bad - indices.begin()] = 4;
                                                }},
                                           {"values"});
  expect_finding(checkup, "values", Grade::kFail,
                 {"the label of training example 30 is 4, expected 0 to 3"});
}

TEST(Doctor, InputsThatAreFarTooLargeAreAWarning) {
  const Checkup checkup = examine_poisoned(
      {.batch = [](std::span<const int64_t>, Batch& batch) { batch.inputs.mul_(1e4); }},
      {"values"});
  expect_finding(checkup, "values", Grade::kWarn, {"from -9.55e+03"});
}

TEST(Doctor, TensorsThatAreKeptWithoutAGraphAreCounted) {
  std::vector<at::Tensor> kept;
  const auto keep = [&](const at::Tensor& logits, const at::Tensor& labels) {
    kept.push_back(logits.detach().clone());
    return at::cross_entropy_loss(logits, labels);
  };
  const Checkup checkup = examine_poisoned({.loss = keep}, {"memory"});
  // 8 images, 4 classes, 4 bytes.
  expect_finding(checkup, "memory", Grade::kWarn, {"every step keeps 128 bytes"});
}

TEST(Doctor, GrowthOfMemoryNeedsStepsAndTheirData) {
  const testing::TemporaryFolder folder;
  Assignments options = make_plant_data(folder.path());
  options.emplace_back("threads", "1");
  DoctorSettings settings = only({"memory"});
  settings.examination.steps = 3;
  const Checkup few_steps = examine(options, settings);
  expect_finding(few_steps, "memory", Grade::kSkip, {"too few steps"});
  EXPECT_NE(find(few_steps, "memory")->advice.find("--steps 4"), std::string::npos);
  settings.examination.steps = 4;
  EXPECT_NE(find(examine(options, settings), "memory")->grade, Grade::kSkip);
  options.emplace_back("limit_train", "24");  // three batches of eight
  settings.examination.steps = 6;
  const Checkup few_data = examine(options, settings);
  expect_finding(few_data, "memory", Grade::kSkip, {"too few batches"});
  EXPECT_NE(find(few_data, "memory")->advice.find("--batch"), std::string::npos);
}

TEST(Doctor, ALossFarAboveGuessingIsAWarning) {
  const auto large = [](const at::Tensor& logits, const at::Tensor& labels) {
    return 10 * at::cross_entropy_loss(logits, labels);
  };
  const Checkup checkup = examine_poisoned({.loss = large}, {"loss"});
  expect_finding(checkup, "loss", Grade::kWarn, {"guessing among 4 classes costs 1.386"});
}

TEST(Doctor, DataThatCannotBeReadAreAFinding) {
  const Checkup checkup = examine({{"data", "/nowhere"}}, {});
  expect_finding(checkup, "data", Grade::kFail, {"/nowhere"});
}

TEST(Doctor, ABatchThatIsNeverMadeIsNamed) {
  const testing::TemporaryFolder folder;
  const Assignments options = make_plant_data(folder.path());
  RunConfig config = make_config(options);
  config.recipe.watchdog = "0.5";
  const std::unique_ptr<Task> good = make_task(&config, &options);
  std::promise<Checkup> heard;
  std::future<Checkup> hang = heard.get_future();
  const auto stand_still = [&](std::span<const int64_t>, Batch&) {
    hang.wait_for(std::chrono::seconds(20));
  };
  DoctorSettings settings = only({"values"});
  settings.examination.steps = 1;
  settings.hang = [&, first = true](const Checkup& checkup) mutable {
    if (std::exchange(first, false)) heard.set_value(checkup);
  };
  examine(config, PlantedTask(*good, {.batch = stand_still}), settings);
  ASSERT_EQ(hang.wait_for(std::chrono::seconds(0)), std::future_status::ready);
  const Checkup checkup = hang.get();
  ASSERT_EQ(checkup.findings.size(), 1u);
  expect_finding(checkup, "data", Grade::kFail, {"stands still in batch", "the limit is 0.5 s"});
}

TEST(Doctor, ItsWatchdogTakesSecondsAndMayBeSwitchedOff) {
  const auto seconds = [](const char* watchdog) -> std::optional<double> {
    const auto patience = patience_of(make_config({{"watchdog", watchdog}}).recipe);
    return patience ? std::optional(patience->seconds) : std::nullopt;
  };
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds("2x"), kPatientSeconds);
  EXPECT_EQ(seconds("off"), std::nullopt);
}

TEST(Doctor, EveryOperatorWithABackwardPassIsJudged) {
  const Checkup checkup = examine_poisoned({}, {"operators"});
  expect_finding(checkup, "operators", Grade::kPass,
                 {"selective_scan ", "ss2d ", "layer_norm ", "depthwise_conv ", "causal_conv1d ",
                  "gated_delta_rule "});
}

TEST(Doctor, UnknownNamesAreRefused) {
  EXPECT_THROW(examine({}, only({"gradient"})), InvalidArgument);
  EXPECT_THROW(run_plant("nan-inputs", {}), InvalidArgument);
}

TEST(Doctor, TheChecklistHas80ColumnsAndTheDocumentEverything) {
  Checkup checkup;
  checkup.findings = {
      {"values", Grade::kPass, "all is well"},
      {"gradients", Grade::kFail, std::string(40, 'x') + " " + std::string(50, 'y') + " z",
       "Do something about it, and do it in so many words that they do not fit into one line."},
      {"data", Grade::kWarn, std::string(200, 'p'), "A word that is too long has its own line."},
      {"host", Grade::kSkip, "no", ""}};
  const std::string text = to_text(checkup);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("pppp") != std::string::npos) continue;
    EXPECT_LE(line.size(), 80u) << line;
  }
  EXPECT_EQ(text.find("pass  values      all is well\n"), 0u) << text;
  EXPECT_NE(text.find("\n                  -> Do something"), std::string::npos) << text;
  EXPECT_NE(text.find("\n1 passed, 1 to look at, 1 failed, 1 skipped\n"), std::string::npos);
  const nlohmann::json document = to_json(checkup);
  EXPECT_TRUE(document["failed"]);
  EXPECT_EQ(document["checks"].size(), 4u);
  EXPECT_EQ(document["checks"][1]["grade"], "fail");
}

TEST(Doctor, WhatWasSaidOfAnotherCheckIsNotRepeated) {
  const Checkup checkup = {{{"host", Grade::kFail, "an error", "what to do"},
                            {"values", Grade::kPass, "an error", ""},
                            {"loss", Grade::kFail, "an error", "what to do"},
                            {"reach", Grade::kFail, "an error", "what else to do"}}};
  EXPECT_EQ(to_text(checkup),
            "fail  host        an error\n"
            "                  -> what to do\n"
            "pass  values      an error\n"
            "fail  loss        the same as 'host' above\n"
            "fail  reach       an error\n"
            "                  -> what else to do\n"
            "\n1 passed, 0 to look at, 3 failed, 0 skipped\n");
  EXPECT_EQ(to_json(checkup)["checks"][2]["measured"], "an error");
}

TEST(Plant, ANonScalarLoss) {
  const Checkup checkup = plant("non-scalar-loss", {"loss", "bisection"});
  expect_finding(checkup, "training", Grade::kFail,
                 {"the loss has shape [8], expected a scalar", "exit code 1"});
  expect_finding(checkup, "loss", Grade::kFail, {"[8]"});
  expect_finding(checkup, "bisection", Grade::kFail, {"fails first with the loss", "classifier"});
}

TEST(Plant, ANanInTheInput) {
  const Checkup checkup = plant("nan-input", {"values"});
  expect_finding(checkup, "training", Grade::kFail,
                 {"the input of sample", "1 NaN", "checkpoints/step-", "exit code 3"});
  expect_finding(checkup, "values", Grade::kFail, {"training example 17", "1 NaN"});
}

TEST(Plant, AnExplodingLearningRate) {
  const Checkup checkup = plant("exploding-lr", {"gradients"});
  expect_finding(checkup, "training", Grade::kFail, {"train: step ", "exit code 3"});
  expect_finding(checkup, "gradients", Grade::kFail, {"at learning rate 1e+20", "classifier"});
  EXPECT_NE(find(checkup, "gradients")->advice.find("is too high"), std::string::npos)
      << find(checkup, "gradients")->advice;
}

TEST(Plant, ADetachedParameter) {
  const Checkup checkup = plant("detached-parameter", {"reach"});
  expect_finding(checkup, "training", Grade::kFail,
                 {"get no gradient: patch_embed.", "exit code 1"});
  expect_finding(checkup, "reach", Grade::kFail, {"receive no gradient: patch_embed."});
  const nlohmann::json told = to_json(checkup)["checks"];
  const Finding& reach = *find(checkup, "reach");
  ASSERT_FALSE(reach.parameters.empty());
  EXPECT_TRUE(reach.measured.starts_with(fmt::format("{} of ", reach.parameters.size())))
      << reach.measured;
  EXPECT_EQ(told.back()["parameters"], reach.parameters);
  EXPECT_FALSE(told.front().contains("parameters"));
}

TEST(Plant, AGraphThatIsKeptAlive) {
  const Checkup checkup = plant("kept-graph", {"memory"});
  expect_finding(checkup, "training", Grade::kWarn, {"step 6: the graph of the step before"});
  expect_finding(checkup, "memory", Grade::kFail,
                 {"the graph of step 1 is still alive", "bytes more"});
}

TEST(Plant, ABlockThatSleeps) {
  const testing::TemporaryFolder folder;  // for what stays because of the report
  ::setenv("TMPDIR", folder.path().c_str(), 1);
  PlantSettings settings;
  settings.doctor = only({"loss", "reach"});
  settings.hang_code = 4;
  std::vector<Checkup> hangs;
  settings.doctor.hang = [&](const Checkup& checkup) { hangs.push_back(checkup); };
  const Checkup checkup = run_plant("sleeping-block", settings);
  ::unsetenv("TMPDIR");
  expect_finding(
      checkup, "training", Grade::kFail,
      {"stands still", "module layers.1.blocks.0.op", "/run/hang-step-5.txt", "exit code 4"});
  const std::string& said = find(checkup, "training")->measured;
  const std::size_t begin = said.find("; see ") + 6;
  EXPECT_TRUE(std::filesystem::is_regular_file(said.substr(begin, said.find(' ', begin) - begin)));
  expect_finding(checkup, "checkpoint", Grade::kPass, {"step-4 is intact"});
  ASSERT_EQ(hangs.size(), 1u);
  expect_finding(hangs[0], "training", Grade::kFail, {});
  expect_finding(hangs[0], "loss", Grade::kFail, {"stands still in layers.1.blocks.0.op"});
  EXPECT_EQ(hangs[0].findings.size(), 3u);
}

TEST(Plant, MoreMemoryThanThereIs) {
  const Checkup checkup = plant("out-of-memory", {"anomaly", "bisection"});
  expect_finding(
      checkup, "training", Grade::kFail,
      {"step 5 needs more memory than there is, in layers.1.blocks.0.op", "exit code 1"});
  expect_finding(checkup, "anomaly", Grade::kFail, {"layers.1.blocks.0.op: needs more memory"});
  expect_finding(
      checkup, "bisection", Grade::kFail,
      {"fails first with layers.1.blocks.0.op", "up to layers.0.downsample all is well"});
}

TEST(Plant, AFullDisk) {
  const Checkup checkup = plant("full-disk", {"host"});
  expect_finding(checkup, "training", Grade::kFail, {"cannot write", "step-"});
  expect_finding(checkup, "host", Grade::kFail, {"a checkpoint of", "cannot be written"});
}

TEST(Plant, ATruncatedDataFile) {
  const Checkup checkup = plant("truncated-data", {});
  expect_finding(checkup, "training", Grade::kFail, {"train-images-idx3-ubyte"});
  expect_finding(checkup, "data", Grade::kFail, {"train-images-idx3-ubyte", "10383"});
}

TEST(Plant, AKernelThatLoopsNeedsAGpu) {
  try {
    open_compute("cuda");
    GTEST_SKIP() << "it would end with the process: tests/cli does that";
  } catch (const Unsupported&) {
  }
  try {
    run_plant("looping-kernel", {});
    FAIL() << "a kernel that loops has ended";
  } catch (const Unsupported& error) {
    EXPECT_NE(std::string(error.what()).find("cuda"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace linescan
