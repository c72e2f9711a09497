// Training on sequences through the session that trains on images: files, resuming, what it learns,
// and what is refused.

#include "linescan/train/sequence_task.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/models/networks/generate.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/session.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::read_text;
using testing::TemporaryFolder;

// Copy two items of four: learnt within a second.
Assignments tiny_sequences() {
  return {{"task", "copying"}, {"vocabulary", "6"},   {"length", "8"}, {"items", "2"},
          {"hidden", "32"},    {"layers", "1"},       {"heads", "1"},  {"head_dim", "16"},
          {"batch", "16"},     {"limit_train", "64"}, {"epochs", "2"}, {"threads", "1"},
          {"lr", "0.01"},      {"ema", "0.9"}};
}

TEST(SequenceTask, LearnsWritesEveryFileAndGeneratesWhatItLearnt) {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  Assignments options = tiny_sequences();
  options.insert(options.end(), {{"limit_train", "6400"}, {"epochs", "1"}});
  const SessionResult result = run_session({options, run, false}, {});
  EXPECT_EQ(result.end, SessionEnd::kFinished);
  EXPECT_GT(result.test_top1, 0.95);
  for (const char* file : {"config.toml", "machine.json", "metrics.jsonl", "summary.json",
                           "evaluation.json", "report.html", "checkpoints/best/model.safetensors"})
    EXPECT_TRUE(fs::exists(run / file)) << file;
  const json evaluation = json::parse(read_text(run / "evaluation.json"));
  EXPECT_EQ(evaluation["answers"], 2048 * 2);
  EXPECT_EQ(evaluation["top1"], result.test_top1);
  const std::string report = read_text(run / "report.html");
  EXPECT_NE(report.find("sequences per second"), std::string::npos);
  EXPECT_EQ(report.find("Class by class"), std::string::npos);
  EXPECT_EQ(report.find("Most confident mistakes"), std::string::npos);
  EXPECT_EQ(report.find("images"), std::string::npos);

  const fs::path checkpoint = find_checkpoint(run, "best");
  const RunConfig config = load_config(checkpoint);
  LanguageModel model = load_language_model(checkpoint, config);
  const SequenceTask task(config);
  int64_t right = 0, all = 0;
  for (int64_t number = 0; number < 50; ++number) {
    const TokenSequence sequence = task.test_sequence(number);
    std::vector<int64_t> prompt(sequence.tokens.begin(), sequence.tokens.begin() + 7);
    ASSERT_EQ(prompt.back(), 1);  // the mark
    int64_t at = 6;
    generate(model, prompt, {.tokens = 2}, [&](int64_t token) {
      right += token == sequence.labels[at++];
      ++all;
    });
  }
  EXPECT_EQ(all, 100);
  EXPECT_GE(right, 85);
}

TEST(SequenceTask, AResumedRunEndsWithTheSameBytes) {
  const TemporaryFolder folder;
  const fs::path whole = folder.path() / "whole", cut = folder.path() / "cut";
  ASSERT_EQ(run_session({tiny_sequences(), whole, false}, {}).end, SessionEnd::kFinished);
  std::atomic<int> signal{0};
  TrainingHooks hooks;
  hooks.stop_signal = &signal;
  hooks.progress = [&](const ProgressFacts& facts) {
    EXPECT_EQ(facts.examples, "sequences");
    if (facts.step == 3) signal = 15;
  };
  ASSERT_EQ(run_session({tiny_sequences(), cut, false}, hooks).end, SessionEnd::kStopped);
  ASSERT_EQ(run_session({{}, cut, true}, {}).end, SessionEnd::kFinished);
  for (const char* file : {"model.safetensors", "ema.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text(whole / "checkpoints/last" / file) ==
                read_text(cut / "checkpoints/last" / file))
        << file;
  EXPECT_EQ(read_text(whole / "evaluation.json"), read_text(cut / "evaluation.json"));
}

TEST(SequenceTask, AnswersAreCountedWhereSomethingIsAsked) {
  const SequenceTask task(make_config(tiny_sequences()));
  Network guess;  // always says the token that it sees
  guess.module = std::make_shared<torch::nn::Module>();
  guess.forward = [](const at::Tensor& tokens) {
    return torch::one_hot(tokens.flatten(), 6).to(at::kFloat) * 5;
  };
  int64_t right = 0;
  for (int64_t number = 0; number < 2048; ++number) {
    const TokenSequence sequence = task.test_sequence(number);
    for (std::size_t t = 0; t < sequence.tokens.size(); ++t)
      right += sequence.tokens[t] == sequence.labels[t];
  }
  const Evaluation evaluation = *task.evaluate(guess, Split::kTest, {.batch = 100});
  EXPECT_EQ(evaluation.examples, 4096);
  EXPECT_DOUBLE_EQ(evaluation.top1, static_cast<double>(right) / 4096);
  EXPECT_TRUE(guess.module->is_training());
  // Who finds all tokens equally likely has named the first one.
  guess.forward = [](const at::Tensor& tokens) { return at::ones({tokens.numel(), 6}); };
  int64_t first = 0, first_five = 0;
  for (int64_t number = 0; number < 2048; ++number)
    for (const int64_t label : task.test_sequence(number).labels) {
      first += label == 0;
      first_five += label != kNothingAsked && label < 5;
    }
  const Evaluation undecided = *task.evaluate(guess, Split::kTest, {.batch = 100});
  EXPECT_DOUBLE_EQ(undecided.top1, static_cast<double>(first) / 4096);
  EXPECT_DOUBLE_EQ(undecided.top5, static_cast<double>(first_five) / 4096);
  EXPECT_FALSE(task.evaluate(guess, Split::kTest, {.batch = 100, .stop = [] { return true; }}));
  guess.forward = [](const at::Tensor& tokens) {
    return at::full({tokens.numel(), 6}, NAN, at::kFloat);
  };
  EXPECT_THROW(task.evaluate(guess, Split::kHeldOut, {.batch = 100}), NotFinite);
}

TEST(SequenceTask, ABadLossNamesItsCause) {
  const TemporaryFolder folder;
  Assignments options = tiny_sequences();
  options.insert(options.end(), {{"lr", "1e30"}, {"warmup", "0"}, {"clip", "0"}});
  try {
    run_session({options, folder.path() / "run", false}, {});
    FAIL() << "no error";
  } catch (const NotFinite& error) {
    const std::string text = error.what();
    EXPECT_TRUE(text.find("first bad") != std::string::npos ||
                text.find("parameter ") != std::string::npos)
        << text;
  }
}

TEST(SequenceTask, RefusesWithoutLeavingAFolder) {
  const TemporaryFolder folder;
  const fs::path run = folder.path() / "run";
  for (const auto& bad : Assignments{{"task", "recal"},
                                     {"items", "0"},
                                     {"length", "3"},
                                     {"heads", "0"},
                                     {"value_heads", "3"},
                                     {"head_dim", "1000"},
                                     {"conv_size", "7"},
                                     {"data", "fashion-mnist"},
                                     {"dims", "8"},
                                     {"flip", "true"},
                                     {"batch", "65"}}) {
    Assignments options = tiny_sequences();
    if (bad.first == "value_heads") options.emplace_back("heads", "2");
    options.push_back(bad);
    EXPECT_THROW(run_session({options, run, false}, {}), InvalidArgument)
        << bad.first << "=" << bad.second;
    EXPECT_FALSE(fs::exists(run)) << bad.first;
  }
}

TEST(SequenceTask, RunsOfOneTaskAreNotUsedForTheOther) {
  const TemporaryFolder folder;
  const fs::path sequences = folder.path() / "sequences", images = folder.path() / "images";
  Assignments options = tiny_sequences();
  options.emplace_back("epochs", "1");
  run_session({options, sequences, false}, {});
  EXPECT_THROW(load_trained(find_checkpoint(sequences, "best")), InvalidArgument);
  options = testing::tiny_options(testing::write_tiny_data(folder.path()));
  options.emplace_back("epochs", "1");
  run_session({options, images, false}, {});
  const fs::path checkpoint = find_checkpoint(images, "best");
  EXPECT_THROW(load_language_model(checkpoint, load_config(checkpoint)), InvalidArgument);
}

}  // namespace
}  // namespace linescan
