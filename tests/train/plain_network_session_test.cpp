// The plain networks through the whole of training: configuration, run, checkpoint, and back.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/dataset.h"
#include "linescan/train/session.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

using testing::TemporaryFolder;
using testing::write_tiny_data;

Assignments options_of(const std::string& model, const std::filesystem::path& data) {
  Assignments options = {{"model", model}, {"data", data.string()}, {"dims", "16"},
                         {"depths", "1"},  {"patch", "3"},          {"batch", "8"},
                         {"epochs", "6"},  {"threads", "1"},        {"lr", "0.01"},
                         {"flip", "false"}};
  if (model == "vit_fashion") options.emplace_back("heads", "2");
  return options;
}

class PlainNetworkSession : public ::testing::TestWithParam<const char*> {};

TEST_P(PlainNetworkSession, TrainsSavesAndResumes) {
  const TemporaryFolder folder;
  const std::filesystem::path run = folder.path() / "run";
  SessionRequest request;
  request.options = options_of(GetParam(), write_tiny_data(folder.path()));
  request.run = run;
  const SessionResult result = run_session(request, {});
  EXPECT_EQ(result.end, SessionEnd::kFinished);
  EXPECT_GT(result.test_top1, 0.5);  // four classes

  const std::filesystem::path checkpoint = find_checkpoint(run, "best");
  const TrainedModel model = load_trained(checkpoint);
  ASSERT_TRUE(model.config.plain.has_value());
  EXPECT_EQ(model.config.plain->dims, std::vector<int64_t>{16});
  EXPECT_EQ(model.config.plain->classes, testing::kTinyClasses);
  EXPECT_EQ(model.config.plain->image_size, testing::kTinySide);
  EXPECT_EQ(to_json(load_config(checkpoint)), to_json(model.config));

  request.resume = true;
  request.options.clear();
  EXPECT_EQ(run_session(request, {}).end, SessionEnd::kWasFinished);
}

INSTANTIATE_TEST_SUITE_P(Models, PlainNetworkSession,
                         ::testing::Values("vit_fashion", "convnext_fashion"));

TEST(PlainNetworkConfig, HasTheOptionsOfItsOwnKindAlone) {
  const RunConfig config = make_config({{"model", "vit_fashion"}, {"heads", "2"}, {"dims", "32"}});
  EXPECT_EQ(config.plain->heads, 2);
  EXPECT_TRUE(std::holds_alternative<PlainConfig>(config.image_network()));
  EXPECT_THROW(make_config({{"model", "vit_fashion"}, {"states", "2"}}), InvalidArgument);
  EXPECT_THROW(make_config({{"model", "convnext_fashion"}, {"heads", "2"}}), InvalidArgument);
  EXPECT_THROW(make_config({{"model", "vit_fashoin"}}), InvalidArgument);
  EXPECT_FALSE(make_config({}).plain.has_value());
}

}  // namespace
}  // namespace linescan
