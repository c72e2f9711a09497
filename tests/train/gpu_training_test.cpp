// Training on the GPU: recorded and plain steps, checkpoints that go from device to device, a bad
// step. Skipped where there is no GPU or this build has no code for it. In a process of their own, as
// CTest runs them (compute.h).

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/models/module_watch.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/dataset.h"
#include "linescan/train/doctor/doctor.h"
#include "linescan/train/evaluate.h"
#include "linescan/train/predict.h"
#include "linescan/train/session.h"
#include "tests/support/gpu_test.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;
using testing::read_text;
using testing::TemporaryFolder;

class GpuTraining : public GpuTest {
 protected:
  Assignments options(std::initializer_list<std::pair<std::string, std::string>> more) const {
    Assignments all = testing::tiny_options(testing::write_tiny_data(folder_.path()));
    all.insert(all.end(), {{"device", "cuda"}, {"drop_path", "0"}, {"flip", "false"}});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  fs::path run_folder(const char* name) const { return folder_.path() / name; }

  // Messages of a run.
  std::string train(const Assignments& options, const char* name) {
    std::string said;
    TrainingHooks hooks;
    hooks.message = [&](const std::string& text) { said += text + '\n'; };
    result_ = run_session({options, run_folder(name), false}, hooks);
    return said;
  }

  TemporaryFolder folder_;
  SessionResult result_;
};

TEST_F(GpuTraining, LearnsTheTinyDataInEveryPrecision) {
  for (const char* precision : {"fp32", "tf32", "bf16", "fp16"}) {
    const std::string said =
        train(options({{"epochs", "12"}, {"precision", precision}}), precision);
    EXPECT_EQ(said.find("without a CUDA graph"), std::string::npos) << said;
    EXPECT_GT(result_.test_top1, 0.9) << precision;
    const auto state =
        nlohmann::json::parse(read_text(run_folder(precision) / "checkpoints/last/state.json"));
    EXPECT_EQ(state["compute"]["precision"], precision);
    EXPECT_FALSE(state["compute"]["rng"].get<std::string>().empty());
    EXPECT_EQ(state["compute"]["loss_scale"].get<double>() > 0, std::string(precision) == "fp16");
  }
}

TEST_F(GpuTraining, RecordedStepsTrainLikePlainOnes) {
  train(options({{"epochs", "3"}}), "recorded");
  const double recorded = result_.test_top1;
  train(options({{"epochs", "3"}, {"graph", "false"}}), "plain");
  EXPECT_NEAR(recorded, result_.test_top1, 0.1);
}

TEST_F(GpuTraining, ACheckpointIsUsedOnBothDevices) {
  train(options({{"epochs", "12"}}), "run");
  const Dataset data = load_dataset((folder_.path() / "tiny").string());
  double top1[2];
  int i = 0;
  for (const char* device : {"cpu", "cuda"}) {
    const Compute compute = open_compute(device);
    TrainedModel model = load_trained(find_checkpoint(run_folder("run"), "best"), compute.device);
    top1[i++] = evaluate(*model.network, data.test, BatchAssembler(model.normalisation),
                         {.batch = 8, .compute = compute})
                    ->top1;
  }
  EXPECT_NEAR(top1[0], top1[1], 0.05);
}

// Batches before the graph, those that it runs, the last one of fewer images, and the same graph after a change of the weights in
// their place.
TEST_F(GpuTraining, RecordedBatchesArePredictedLikePlainOnes) {
  train(options({{"epochs", "2"}}), "run");
  const Dataset data = load_dataset((folder_.path() / "tiny").string());
  for (const char* precision : {"fp32", "bf16"}) {
    const Compute compute = open_compute("cuda", precision);
    TrainedModel model = load_trained(find_checkpoint(run_folder("run"), "best"), compute.device);
    model.network->eval();
    const BatchAssembler assembler(model.normalisation);
    Predictor predictor(*model.network, compute), plain(*model.network, compute, false);
    const auto expect_same = [&](int64_t first, int64_t count, bool replayed) {
      EXPECT_EQ(predictor.log_probabilities(data.test, first, count, assembler),
                plain.log_probabilities(data.test, first, count, assembler))
          << first;
      EXPECT_EQ(predictor.replayed(), replayed) << first;
      EXPECT_FALSE(plain.replayed());
    };
    ASSERT_GE(data.test.count, 7);
    for (int64_t batch = 0; batch < 3; ++batch) expect_same(batch, 2, false);
    for (int64_t batch = 3; batch < 6; ++batch) expect_same(batch, 2, true);
    expect_same(6, 1, false);
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& parameter : model.network->parameters()) parameter.mul_(1.01);
    }
    expect_same(0, 2, true);
  }
}

TEST_F(GpuTraining, ARunGoesOnOnTheOtherDevice) {
  std::atomic<int> signal{0};
  std::string said;
  TrainingHooks hooks;
  hooks.stop_signal = &signal;
  hooks.progress = [&](const ProgressFacts& facts) {
    if (facts.step == 7) signal = 15;
  };
  hooks.message = [&](const std::string& text) { said += text + '\n'; };
  const fs::path run = run_folder("moving");
  ASSERT_EQ(run_session({options({}), run, false}, hooks).end, SessionEnd::kStopped);
  signal = 0;
  hooks.progress = {};
  ASSERT_EQ(run_session({{{"device", "cpu"}}, run, true}, hooks).end, SessionEnd::kFinished);
  EXPECT_NE(said.find("this is fp32 on cpu"), std::string::npos) << said;
}

TEST_F(GpuTraining, ABadStepIsNamedThoughItIsReadLater) {
  try {
    train(options({{"lr", "1e30"}, {"clip", "0"}, {"warmup", "0"}}), "bad");
    FAIL() << "expected NotFinite";
  } catch (const NotFinite& error) {
    EXPECT_NE(std::string(error.what()).find("train: step "), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("last good checkpoint"), std::string::npos);
  }
}

TEST_F(GpuTraining, MemoryThatRunsOutIsThatOfTheGpu) {
  const ModuleWatch watch([pass = 0](const std::string& name, at::Tensor output) mutable {
    if (name == "layers.0.downsample" && ++pass == 2)
      return at::empty({int64_t{1} << 46}, output.options());
    return output;
  });
  try {
    train(options({{"epochs", "1"}}), "large");
    FAIL() << "expected DeviceError";
  } catch (const DeviceError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("step 2 needs more memory than there is"), std::string::npos) << text;
    EXPECT_NE(text.find("the GPU: "), std::string::npos) << text;
    EXPECT_NE(text.find(" GB of tensors, "), std::string::npos) << text;
  }
}

TEST_F(GpuTraining, TheDoctorJudgesTheGradientsOfEveryOperator) {
  DoctorSettings settings;
  settings.only = {"versions", "operators"};
  const Checkup checkup = examine(options({}), settings);
  ASSERT_EQ(checkup.findings.size(), 2u);
  for (const Finding& finding : checkup.findings)
    EXPECT_EQ(finding.grade, Grade::kPass) << to_text(checkup);
  EXPECT_NE(checkup.findings[0].measured.find("LibTorch's runtime CUDA "), std::string::npos);
  for (const char* name : {"selective_scan ", "ss2d ", "layer_norm ", "depthwise_conv ",
                           "causal_conv1d ", "gated_delta_rule "})
    EXPECT_NE(checkup.findings[1].measured.find(name), std::string::npos) << name;
}

}  // namespace
}  // namespace linescan
