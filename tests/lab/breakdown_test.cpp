// What is recorded of a step, and where its time is put.

#include "linescan/lab/breakdown.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "linescan/base/error.h"
#include "linescan/lab/op_recorder.h"
#include "linescan/lab/step.h"
#include "linescan/models/networks/image_network.h"
#include "tests/models/small_model.h"

namespace linescan::lab {
namespace {

TEST(Category, KnowsOperatorsByNameAndProductsByTheirPart) {
  constexpr auto kNone = Category::kRest;
  EXPECT_EQ(categorise("linescan::ss2d_scan", Part::kScan, kNone), Category::kScan);
  EXPECT_EQ(categorise("linescan::ss2d_scan_backward", Part::kOther, kNone), Category::kScan);
  EXPECT_EQ(categorise("aten::linear", Part::kScan, Category::kScan), Category::kProjection);
  EXPECT_EQ(categorise("AddmmBackward0", Part::kOther, kNone), Category::kProjection);
  EXPECT_EQ(categorise("aten::addmm", Part::kMlp, kNone), Category::kMlp);
  EXPECT_EQ(categorise("aten::gelu", Part::kMlp, kNone), Category::kMlp);
  EXPECT_EQ(categorise("aten::native_layer_norm", Part::kMlp, kNone), Category::kNorm);
  EXPECT_EQ(categorise("aten::empty", Part::kMlp, Category::kNorm), Category::kNorm);
  EXPECT_EQ(categorise("ConvolutionBackward0", Part::kOther, kNone), Category::kConvolution);
  EXPECT_EQ(categorise("aten::softmax", Part::kAttention, kNone), Category::kAttention);
  EXPECT_EQ(categorise("aten::bmm", Part::kAttention, Category::kAttention), Category::kAttention);
  EXPECT_EQ(categorise("aten::linear", Part::kAttention, kNone), Category::kProjection);
  EXPECT_EQ(categorise("aten::stack", Part::kScan, kNone), Category::kScan);
  EXPECT_EQ(categorise("aten::mul", Part::kOther, kNone), Category::kRest);
}

Recording record_training(const ImageConfig& config) {
  torch::manual_seed(2);
  const ImageNetwork network = make_image_network(config);
  Step step(network, config, {}, StepKind::kTraining, 2, 16);
  return record_operators({}, [&] { step.run(); });
}

std::array<int, kCategories> count(const Recording& recording, const std::string& part) {
  std::array<int, kCategories> counts{};
  for (const Span& span : recording.spans)
    if (span.name.find(part) != std::string::npos) ++counts[static_cast<int>(span.category)];
  return counts;
}

TEST(OpRecorder, FindsThePartsOfAStepForwardAndBackward) {
  const Recording recording = record_training(small_config());  // three blocks
  const auto scans = count(recording, "linescan::ss2d_scan_backward");
  EXPECT_EQ(scans[static_cast<int>(Category::kScan)], 3);
  // Two products a block belong to its MLP; in, out and x projections do not, nor does the head.
  const auto products = count(recording, "AddmmBackward0");
  EXPECT_GE(products[static_cast<int>(Category::kMlp)], 6);
  const Breakdown breakdown = break_down(recording);
  for (const Category category : {Category::kScan, Category::kProjection, Category::kConvolution,
                                  Category::kNorm, Category::kMlp, Category::kRest})
    EXPECT_GT(breakdown.share(category), 0) << name_of(category);
  EXPECT_EQ(breakdown.share(Category::kAttention), 0);
  EXPECT_NEAR(breakdown.total(), recording.seconds, 0.02 * recording.seconds);
}

TEST(OpRecorder, TellsAttentionFromItsProjections) {
  PlainConfig config;
  config.in_channels = 2;
  config.classes = 3;
  config.image_size = 16;
  config.patch = 4;
  config.dims = {16};
  config.depths = {2};
  config.heads = 2;
  const Breakdown breakdown = break_down(record_training(config));
  EXPECT_GT(breakdown.share(Category::kAttention), 0);
  EXPECT_GT(breakdown.share(Category::kProjection), 0);
  EXPECT_GT(breakdown.share(Category::kMlp), 0);
  EXPECT_EQ(breakdown.share(Category::kScan), 0);
}

TEST(OpRecorder, CountsTimeOnceAndWhatLiesBetweenAsRest) {
  const at::Tensor a = torch::rand({64, 64});
  const Recording recording = record_operators({}, [&] {
    at::mm(a, a);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  });
  const Breakdown breakdown = break_down(recording);
  EXPECT_GE(recording.seconds, 0.03);
  // However long the product takes.
  EXPECT_GE(breakdown.share(Category::kRest) * recording.seconds, 0.03);
  EXPECT_GT(breakdown.share(Category::kProjection), 0);
  EXPECT_NEAR(breakdown.total(), recording.seconds, 1e-9);
}

TEST(OpRecorder, DoesNotRecordARecording) {
  EXPECT_THROW(record_operators({}, [] { record_operators({}, [] {}); }), Unsupported);
  EXPECT_EQ(record_operators({}, [] {}).spans.size(), 0u);  // and is free again
}

// As a GPU tells it: times of its own for the second and the last, of which the first is no part.
TEST(Breakdown, OfAGpuHasItsTimesAlone) {
  Recording recording;
  recording.on_gpu = true;
  recording.seconds = 10;
  const auto add = [&](Category category, int64_t caller, double start, double end) {
    Span span;
    span.category = category;
    span.caller = caller;
    span.end = 100;  // of the host
    span.on_device = end > start;
    span.device_start = start;
    span.device_end = end;
    recording.spans.push_back(span);
  };
  add(Category::kRest, -1, 0, 0);
  add(Category::kConvolution, 0, 2, 8);
  add(Category::kConvolution, 1, 0, 0);
  add(Category::kNorm, 2, 3, 4);
  EXPECT_EQ(recording.own_seconds(), (std::vector<double>{0, 5, 0, 1}));
  const Breakdown breakdown = break_down(recording);
  EXPECT_DOUBLE_EQ(breakdown.share(Category::kConvolution), 0.5);
  EXPECT_DOUBLE_EQ(breakdown.share(Category::kNorm), 0.1);
  EXPECT_DOUBLE_EQ(breakdown.share(Category::kRest), 0.4);

  int of_the_gpu = 0;
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(recording));
  for (const nlohmann::json& event : trace["traceEvents"])
    of_the_gpu += event["ph"] == "X" && event["pid"] == 2;
  EXPECT_EQ(of_the_gpu, 2);
}

TEST(Pauses, AreTakenOutOfTheTime) {
  Pauses pauses;
  EXPECT_EQ(pauses.without(3), 3);
  pauses.add(1, 3);
  pauses.add(5, 6);
  EXPECT_EQ(pauses.without(1), 1);
  EXPECT_EQ(pauses.without(2), 1);  // in the middle of one the clock stands still
  EXPECT_EQ(pauses.without(3), 1);
  EXPECT_EQ(pauses.without(5), 3);
  EXPECT_EQ(pauses.without(5.5), 3);
  EXPECT_EQ(pauses.without(10), 7);
  pauses.add(5.5, 7);  // begins inside of the one before
  EXPECT_EQ(pauses.without(10), 6);
}

TEST(Pauses, GiveTheHostSeveralTimesItsTime) {
  Recording recording;
  recording.host_seconds = 0.6;
  EXPECT_EQ(pause_for(recording), 0);
  recording.spans.resize(9);
  for (int i = 0; i < 3; ++i) recording.spans[i].on_device = true;
  EXPECT_DOUBLE_EQ(pause_for(recording), 5 * 0.6 / 3);
}

TEST(ChromeTrace, HoldsEverySpanWithItsPart) {
  const Recording recording = record_training(small_config());
  const nlohmann::json trace = nlohmann::json::parse(chrome_trace(recording));
  std::size_t spans = 0;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    EXPECT_GE(event["dur"].get<double>(), 0);
    EXPECT_TRUE(event.contains("cat"));
  }
  EXPECT_EQ(spans, recording.spans.size());
}

}  // namespace
}  // namespace linescan::lab
