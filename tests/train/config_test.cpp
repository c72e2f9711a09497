#include "linescan/train/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/files/toml.h"
#include "tests/support/messages.h"

namespace linescan {
namespace {

using testing::contains;

std::string config_refusal(const Assignments& assignments) {
  return testing::refusal_of([&] { make_config(assignments); });
}

TEST(Config, NamedNetworkIsReadBeforeItsOptions) {
  const RunConfig config = make_config({{"states", "3"}, {"model", "vmamba_tiny_v0"}});
  EXPECT_EQ(config.network.states, 3);
  EXPECT_EQ(config.network.forward_type, "v0");
}

TEST(Config, LaterAssignmentsWin) {
  EXPECT_EQ(make_config({{"lr", "1"}, {"recipe.lr", "0.5"}}).recipe.lr, 0.5);
}

TEST(Config, OneBudgetReplacesTheOther) {
  EXPECT_EQ(make_config({}).recipe.minutes, 2);
  const RunConfig epochs = make_config({{"minutes", "5"}, {"epochs", "3"}});
  EXPECT_EQ(epochs.recipe.epochs, 3);
  EXPECT_EQ(epochs.recipe.minutes, 0);
  const RunConfig minutes = make_config({{"epochs", "3"}, {"minutes", "5"}});
  EXPECT_EQ(minutes.recipe.epochs, 0);
  EXPECT_EQ(minutes.recipe.minutes, 5);
}

TEST(Config, UnknownKeysNameTheNearestOfBothTables) {
  EXPECT_TRUE(contains(config_refusal({{"weight_decy", "0"}}), "did you mean 'weight_decay'?"));
  EXPECT_TRUE(contains(config_refusal({{"depth", "1"}}), "did you mean 'depths'?"));
  EXPECT_TRUE(contains(config_refusal({{"table.lr", "1"}}), "unknown option 'table.lr'"));
  EXPECT_TRUE(
      contains(config_refusal({{"model", "vmamba_fashon"}}), "did you mean 'vmamba_fashion'?"));
}

TEST(Config, RefusesBadValuesByName) {
  const std::pair<std::string, std::string> bad[] = {
      {"lr", "nan"},         {"lr", "-1"},    {"lr", "0"},           {"lr", "inf"},
      {"lr", "fast"},        {"batch", "0"},  {"epochs", "-1"},      {"minutes", "-2"},
      {"warmup", "1"},       {"beta1", "1"},  {"beta2", "-0.1"},     {"eps", "0"},
      {"ema", "1"},          {"clip", "-1"},  {"keep", "0"},         {"label_smoothing", "1"},
      {"threads", "-1"},     {"shift", "-1"}, {"log_every", "0"},    {"eval_every", "0"},
      {"final_lr", "2"},     {"seed", "-1"},  {"limit_train", "-1"}, {"save_minutes", "0"},
      {"weight_decay", "-1"}};
  for (const auto& [name, text] : bad) {
    const std::string message = config_refusal({{name, text}});
    EXPECT_TRUE(contains(message, name)) << name << "=" << text << ": " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Config, SurvivesJsonAndToml) {
  const RunConfig config = make_config({{"lr", "0.0123456789"},
                                        {"dims", "16,24"},
                                        {"depths", "1,2"},
                                        {"flip", "false"},
                                        {"seed", "7"},
                                        {"data", "some/\"odd\" folder"}});
  const nlohmann::json document = to_json(config);
  EXPECT_EQ(to_json(config_from_json(document, "test")), document);
  EXPECT_EQ(to_json(make_config(parse_toml_options(format_toml_options(document), "test"))),
            document);
}

TEST(Config, ParsesAssignments) {
  EXPECT_EQ(parse_assignment("a=b=c"), (std::pair<std::string, std::string>("a", "b=c")));
  EXPECT_THROW(parse_assignment("novalue"), InvalidArgument);
  EXPECT_THROW(parse_assignment("=1"), InvalidArgument);
}

TEST(Config, AResumedRunKeepsItsOptions) {
  const RunConfig run = make_config({{"lr", "0.5"}, {"epochs", "2"}});
  EXPECT_NO_THROW(resumed_config(run, {{"lr", "0.5"}, {"epochs", "2"}}));
  EXPECT_EQ(resumed_config(run, {{"threads", "3"}}).recipe.threads, 3);
  for (const auto& [name, text] :
       Assignments{{"lr", "0.4"}, {"epochs", "3"}, {"dims", "8"}, {"model", "vmamba_tiny_v0"}})
    EXPECT_THROW(resumed_config(run, {{name, text}}), InvalidArgument) << name;
}

TEST(Config, ABudgetOfNothingIsRefused) {
  for (const char* name : {"epochs", "minutes"}) {
    const std::string message = config_refusal({{name, "0"}});
    EXPECT_TRUE(contains(message, "expected exactly one of them above 0")) << name << message;
  }
  EXPECT_EQ(make_config({{"epochs", "0"}, {"minutes", "3"}}).recipe.minutes, 3);
}

TEST(Config, TheTaskDecidesWhichOptionsThereAre) {
  const RunConfig recall = make_config({{"items", "4"}, {"heads", "1"}, {"task", "recall"}});
  EXPECT_EQ(recall.sequences.items, 4);
  EXPECT_EQ(recall.language.heads, 1);
  EXPECT_EQ(recall.recipe.minutes, 4);
  const nlohmann::json document = to_json(recall);
  EXPECT_EQ(document["sequences"]["items"], 4);
  EXPECT_FALSE(document.contains("data"));
  EXPECT_FALSE(document["recipe"].contains("flip"));
  EXPECT_EQ(to_json(config_from_json(document, "test")), document);
  EXPECT_TRUE(contains(config_refusal({{"task", "recall"}, {"dims", "8"}}), "only images has it"));
  EXPECT_TRUE(contains(config_refusal({{"items", "4"}}), "only recall and copying have it"));
  EXPECT_TRUE(contains(config_refusal({{"task", "recal"}}), "did you mean 'recall'?"));
  EXPECT_NO_THROW(resumed_config(recall, {{"task", "recall"}, {"threads", "2"}}));
  EXPECT_THROW(resumed_config(recall, {{"task", "copying"}}), InvalidArgument);
  EXPECT_THROW(resumed_config(recall, {{"items", "5"}}), InvalidArgument);
}

ImageSet gray_images(int64_t side) {
  ImageSet images;
  images.count = 1;
  images.height = images.width = side;
  return images;
}

TEST(Config, TakesTheDataSizesUnlessAssigned) {
  RunConfig config = make_config({{"model", "vmamba_tiny_s1l8"}});
  fit_to_data(&config, {}, gray_images(40), 17);
  EXPECT_EQ(config.network.in_channels, 1);
  EXPECT_EQ(config.network.classes, 17);
  EXPECT_EQ(config.network.image_size, 40);
}

TEST(Config, RefusesNetworksThatDoNotFitTheData) {
  const Assignments bad[] = {{{"classes", "0"}},
                             {{"classes", "9"}},
                             {{"network.classes", "9"}},
                             {{"in_channels", "3"}},
                             {{"backbone", "true"}}};
  for (const Assignments& assignments : bad) {
    RunConfig config = make_config(assignments);
    EXPECT_THROW(fit_to_data(&config, assignments, gray_images(28), 10), InvalidArgument)
        << assignments[0].first << "=" << assignments[0].second;
  }
  const Assignments larger = {{"classes", "12"}};
  RunConfig config = make_config(larger);
  EXPECT_NO_THROW(fit_to_data(&config, larger, gray_images(28), 10));
  EXPECT_EQ(config.network.classes, 12);
}

}  // namespace
}  // namespace linescan
