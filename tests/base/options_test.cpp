#include "linescan/base/options.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"

namespace linescan {
namespace {

struct Config {
  bool ema = false;
  int64_t epochs = 1;
  double lr = 0.5;
  std::string model = "tiny";
  std::vector<int64_t> depths = {2, 2};

  std::vector<Option> options() {
    return {{"ema", &ema, "keep an average"},
            {"epochs", &epochs, "passes over the data"},
            {"lr", &lr, "learning rate"},
            {"model", &model, "name"},
            {"depths", &depths, "blocks a stage"}};
  }
};

std::string error_of(const std::string& name, const std::string& text) {
  Config config;
  try {
    set_option(config.options(), "option", name, text);
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(to_json(config.options()), to_json(Config().options())) << "changed by bad input";
    return error.what();
  }
  return "no error";
}

TEST(Options, EveryKindIsRead) {
  Config config;
  const auto options = config.options();
  set_option(options, "option", "ema", "true");
  set_option(options, "option", "epochs", "-12");
  set_option(options, "option", "lr", "3e-4");
  set_option(options, "option", "model", "a=b, c");
  set_option(options, "option", "depths", "2,2,8,2");
  EXPECT_TRUE(config.ema);
  EXPECT_EQ(config.epochs, -12);
  EXPECT_EQ(config.lr, 3e-4);
  EXPECT_EQ(config.model, "a=b, c");
  EXPECT_EQ(config.depths, (std::vector<int64_t>{2, 2, 8, 2}));
  set_option(options, "option", "ema", "false");
  set_option(options, "option", "depths", "7");
  EXPECT_FALSE(config.ema);
  EXPECT_EQ(config.depths, std::vector<int64_t>{7});
}

TEST(Options, AssignmentsSplitAtTheFirstEqualsSign) {
  Config config;
  set_option(config.options(), "option", "model=a=b");
  EXPECT_EQ(config.model, "a=b");
  set_option(config.options(), "option", "model=");
  EXPECT_EQ(config.model, "");
  for (const char* bad : {"model", "=x", ""})
    EXPECT_THROW(set_option(config.options(), "option", bad), InvalidArgument) << bad;
}

TEST(Options, UnknownNamesGetASuggestion) {
  const std::string message = error_of("epoch", "3");
  EXPECT_EQ(message.rfind("unknown option 'epoch'; did you mean 'epochs'?", 0), 0u) << message;
}

TEST(Options, BadValuesAreRefusedAndChangeNothing) {
  EXPECT_EQ(error_of("ema", "yes"), "option ema is 'yes', expected true or false");
  for (const char* bad : {"", "1.5", "3x", " 3", "0x10", "9223372036854775808"})
    EXPECT_EQ(error_of("epochs", bad),
              fmt::format("option epochs is '{}', expected an integer of 64 bits", bad));
  for (const char* bad : {"", "nan", "inf", "-inf", "1e999", "0.1 ", "one"})
    EXPECT_EQ(error_of("lr", bad), fmt::format("option lr is '{}', expected a finite number", bad));
  for (const char* bad : {",", "1,", ",1", "1,,2", "1, 2", "1.5", "a"})
    EXPECT_EQ(error_of("depths", bad),
              fmt::format("option depths is '{}', expected integers separated by commas", bad));
}

TEST(Options, TextReadsBackEqual) {
  Config config;
  config.lr = 1.0 / 3.0;
  config.epochs = INT64_MIN;
  config.ema = true;
  config.depths = {-1, 0, 5};
  Config copy;
  const auto from = config.options(), to = copy.options();
  for (std::size_t i = 0; i < from.size(); ++i)
    set_option(to, "option", from[i].name, to_text(from[i].target));
  EXPECT_EQ(to_json(to), to_json(from));
}

TEST(Options, JsonKeepsTheKinds) {
  Config config;
  EXPECT_EQ(to_json(config.options()).dump(),
            R"({"depths":[2,2],"ema":false,"epochs":1,"lr":0.5,"model":"tiny"})");
}

}  // namespace
}  // namespace linescan
