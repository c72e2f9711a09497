// What watches over a run: the watchdog's report, anomaly mode, unused parameters, memory. Faults are
// planted in a network that is trained in a few milliseconds a step.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "linescan/base/error.h"
#include "linescan/models/module_watch.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/session.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;
using testing::read_text;
using testing::TemporaryFolder;

class Guards : public ::testing::Test {
 protected:
  // 16 steps of 8 images an epoch.
  Assignments options(std::initializer_list<std::pair<std::string, std::string>> more) const {
    Assignments all = testing::tiny_options(testing::write_tiny_data(folder_.path()));
    all.insert(all.end(), {{"drop_path", "0"}, {"epochs", "1"}});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TrainingHooks hooks() {
    TrainingHooks hooks;
    hooks.message = [this](const std::string& text) { said_ += text + '\n'; };
    hooks.hang = [this](const HangNotice& notice) {
      const std::lock_guard lock(mutex_);
      notices_.push_back(notice);
      woken_.notify_all();
    };
    return hooks;
  }

  // Sleeps until the watchdog has spoken.
  void sleep_in(const std::string& module, int64_t first_pass) {
    filter_ = [this, module, first_pass, pass = int64_t{0}](const std::string& name,
                                                            at::Tensor output) mutable {
      if (name == module && ++pass == first_pass) {
        std::unique_lock lock(mutex_);
        woken_.wait_for(lock, std::chrono::seconds(20), [this] { return !notices_.empty(); });
      }
      return output;
    };
  }

  template <class Kind>
  std::string error_of(const Assignments& options) {
    const ModuleWatch watch(filter_);
    try {
      run_session({options, run_, false}, hooks());
    } catch (const Kind& error) {
      EXPECT_NO_THROW(load_trained(find_checkpoint(run_, "last")));
      return error.what();
    }
    ADD_FAILURE() << "no error";
    return {};
  }

  TemporaryFolder folder_;
  fs::path run_ = folder_.path() / "run";
  ModuleFilter filter_;
  std::string said_;
  std::mutex mutex_;
  std::condition_variable woken_;
  std::vector<HangNotice> notices_;
};

#define EXPECT_HAS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)

TEST_F(Guards, AHangIsReportedWithEverythingThatIsKnownAndTheRunMayGoOn) {
  sleep_in("layers.1.blocks.0.mlp", 4);
  const ModuleWatch watch(filter_);
  const SessionResult result =
      run_session({options({{"watchdog", "0.5"}, {"on_hang", "continue"}}), run_, false}, hooks());
  EXPECT_EQ(result.end, SessionEnd::kFinished);
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_FALSE(notices_[0].stop);
  EXPECT_HAS(notices_[0].line, "step 4 has been at work for 0.5");
  EXPECT_HAS(notices_[0].line, "module layers.1.blocks.0.mlp");
  EXPECT_EQ(notices_[0].report, run_ / "hang-step-4.txt");
  const std::string report = read_text(notices_[0].report);
  for (const char* words :
       {"the limit is 0.5 s", "module          layers.1.blocks.0.mlp", "operator        ss2d",
        "its plan        ss2d forward on the CPU", "GPU             not used", "MB in use",
        "last step       step 3: loss ", "checkpoints/step-0", "watchdog", "pthread_cond"})
    EXPECT_HAS(report, words);
  EXPECT_HAS(report, "'linescan doctor --run " + run_.string() + "' finds the module");
  EXPECT_HAS(said_, "step 4 has gone on after 0.");
}

TEST_F(Guards, AnEvaluationThatHangsIsCalledOne) {
  // The classifier's first pass that needs no gradient.
  filter_ = [this](const std::string& name, at::Tensor output) {
    if (name == "classifier" && !at::GradMode::is_enabled()) {
      std::unique_lock lock(mutex_);
      woken_.wait_for(lock, std::chrono::seconds(20), [this] { return !notices_.empty(); });
    }
    return output;
  };
  const ModuleWatch watch(filter_);
  run_session({options({{"watchdog", "0.5"}, {"on_hang", "continue"}}), run_, false}, hooks());
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_HAS(notices_[0].line, "evaluation after step 16 has been at work for 0.5");
  EXPECT_EQ(notices_[0].report, run_ / "hang-evaluation-after-step-16.txt");
  EXPECT_HAS(said_, "evaluation after step 16 has gone on after 0.");
  EXPECT_EQ(said_.find("step 16 has gone on"), said_.rfind("step 16 has gone on"));
}

TEST_F(Guards, TheReportSaysWhetherTheRunIsToStop) {
  sleep_in("classifier", 2);
  const ModuleWatch watch(filter_);
  run_session({options({{"watchdog", "0.3"}}), run_, false}, hooks());
  ASSERT_EQ(notices_.size(), 1u);
  EXPECT_TRUE(notices_[0].stop);
}

TEST_F(Guards, SwitchedOffNobodyWatches) {
  filter_ = [](const std::string& name, at::Tensor output) {
    if (name == "classifier") std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return output;
  };
  const ModuleWatch watch(filter_);
  run_session({options({{"watchdog", "off"}}), run_, false}, hooks());
  EXPECT_TRUE(notices_.empty());
  run_session({options({{"watchdog", "0.01"}}), folder_.path() / "watched", false}, hooks());
  EXPECT_FALSE(notices_.empty());
}

TEST_F(Guards, AnomalyModeNamesTheModuleThatMakesANanAndTheOneBeforeIt) {
  filter_ = [pass = 0](const std::string& name, at::Tensor output) mutable {
    if (name != "layers.1.blocks.0.op" || ++pass != 3) return output;
    const at::NoGradGuard no_grad;
    const at::Tensor bad = output.clone();
    bad[1][0][0][2] = std::nanf("");
    return bad;
  };
  const std::string text = error_of<NotFinite>(options({{"detect_anomaly", "true"}}));
  EXPECT_HAS(text,
             "train: step 3: layers.1.blocks.0.op made float32 [8, 3, 3, 16]: 1 NaN, 0 infinite, ");
  EXPECT_HAS(text, "before it layers.0.downsample gave float32 [8, 3, 3, 16]: from ");
  EXPECT_HAS(text, "checkpoints/step-0");
}

TEST_F(Guards, AnomalyModeNamesTheBackwardPassThatMakesANan) {
  // The gradient of sqrt at 0 is infinite; times 0 it is NaN.
  filter_ = [](const std::string& name, at::Tensor output) {
    return name == "layers.1.blocks.0.op" ? output + (output * 0).sqrt() : output;
  };
  const std::string text = error_of<NotFinite>(options({{"detect_anomaly", "true"}}));
  EXPECT_HAS(text,
             "the backward pass of layers.1.blocks.0.op made the gradient of layers.0.downsample");
}

TEST_F(Guards, WithoutAnomalyModeTheStepIsRepeatedToFindTheModule) {
  filter_ = [](const std::string& name, at::Tensor output) {
    return name == "layers.0.blocks.0.mlp" ? output / 0 : output;
  };
  EXPECT_HAS(error_of<NotFinite>(options({})), "the first bad activation is layers.0.blocks.0.mlp");
}

TEST_F(Guards, ParametersWithoutAGradientAreAWarningOrAnError) {
  filter_ = [](const std::string& name, at::Tensor output) {
    return name == "layers.0.blocks.0" ? output.detach() : output;
  };
  {
    const ModuleWatch watch(filter_);
    run_session({options({}), run_, false}, hooks());
  }
  EXPECT_HAS(said_, "parameters get no gradient: patch_embed.");
  EXPECT_HAS(said_, " more\n");
  run_ = folder_.path() / "strict";
  EXPECT_HAS(error_of<Error>(options({{"fail_on_unused", "true"}})),
             "get no gradient: patch_embed.");
}

TEST_F(Guards, ALossWithoutAGradientIsNamed) {
  filter_ = [](const std::string&, at::Tensor output) { return output.detach(); };
  EXPECT_HAS(error_of<Error>(options({})), "requires no gradient");
}

TEST_F(Guards, AGraphThatIsKeptAliveIsNamedWithItsStep) {
  std::vector<at::Tensor> kept;
  filter_ = [&](const std::string& name, at::Tensor output) {
    if (name == "classifier" && output.requires_grad()) kept.push_back(output * 2);
    return output;
  };
  const ModuleWatch watch(filter_);
  run_session({options({}), run_, false}, hooks());
  EXPECT_HAS(said_, "warning: step 2: the graph of the step before is still alive");
  EXPECT_EQ(said_.find("still alive"), said_.rfind("still alive"));  // once is enough
}

TEST_F(Guards, MemoryThatRunsOutIsNamedWithTheModule) {
  filter_ = [pass = 0](const std::string& name, at::Tensor output) mutable {
    if (name == "layers.0.downsample" && ++pass == 5)
      return at::empty({int64_t{1} << 60}, output.options());
    return output;
  };
  const std::string text = error_of<DeviceError>(options({}));
  EXPECT_HAS(text, "step 5 needs more memory than there is, in layers.0.downsample: ");
  EXPECT_HAS(text, " MB are in use and ");
  EXPECT_HAS(text, "a batch smaller than 8");
  EXPECT_HAS(text, "checkpoints/step-0");
}

TEST_F(Guards, MetricsHaveTheMemoryUnlessItIsSwitchedOff) {
  for (const bool on : {true, false}) {
    const fs::path run = folder_.path() / (on ? "on" : "off");
    run_session({options({{"log_memory", on ? "true" : "false"}}), run, false}, {});
    std::istringstream text(read_text(run / "metrics.jsonl"));
    int lines = 0;
    for (std::string line; std::getline(text, line);) {
      const auto row = nlohmann::json::parse(line);
      if (row["kind"] != "train") continue;
      ++lines;
      EXPECT_EQ(row.contains("memory_bytes"), on);
      if (on) {
        EXPECT_GT(row["memory_bytes"], 20'000'000);
      }
    }
    EXPECT_GT(lines, 2);
  }
}

TEST_F(Guards, NonsenseIsRefused) {
  for (const auto& bad : Assignments{{"watchdog", "quick"},
                                     {"watchdog", ""},
                                     {"watchdog", "1x"},
                                     {"watchdog", "nan"},
                                     {"watchdog", "-3"},
                                     {"on_hang", "panic"},
                                     {"detect_anomaly", "maybe"}})
    EXPECT_THROW(make_config({bad}), InvalidArgument) << bad.first << "=" << bad.second;
  for (const char* good : {"off", "2x", "10x", "0.5", "90"})
    EXPECT_NO_THROW(make_config({{"watchdog", good}}));
}

}  // namespace
}  // namespace linescan
