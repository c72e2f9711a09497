#include "linescan/files/toml.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/files/support.h"

namespace linescan::test {
namespace {

using nlohmann::json;

TomlOptions parse(std::string_view text) { return parse_toml_options(text, "c.toml"); }

void expect_refused(std::string_view text, std::initializer_list<std::string> parts) {
  expect_error<InvalidArgument>([&] { parse(text); }, parts);
}

TEST(TomlRead, FlattensInTheOrderOfTheFile) {
  const TomlOptions expected = {{"model", "tiny"},       {"depths", "2,2,8,2"},
                                {"ema", "true"},         {"recipe.lr", "0.001"},
                                {"recipe.epochs", "20"}, {"recipe.schedule.kind", "cosine"}};
  EXPECT_EQ(read_toml_options(sample("options.toml")), expected);
}

TEST(TomlRead, EveryKindOfValue) {
  const TomlOptions expected = {{"a", "false"},   {"b", "-9223372036854775808"},
                                {"c", "255"},     {"d", "1e-08"},
                                {"e", "3"},       {"f", "nan"},
                                {"g", "x \"y\""}, {"h", ""},
                                {"t.i", "7"}};
  EXPECT_EQ(parse("a = false\nb = -9223372036854775808\nc = 0xff\nd = 1e-8\ne = 3.0\nf = nan\n"
                  "g = 'x \"y\"'\nh = []\nt = {i = 7}\n"),
            expected);
  EXPECT_TRUE(parse("").empty());
  EXPECT_TRUE(parse("[table]\n").empty());
}

TEST(TomlRead, ErrorsNameFileLineAndColumn) {
  expect_refused("a = 1\nb = = 2\n", {"c.toml:2:"});
  expect_refused("a = 1\na = 2\n", {"c.toml:2:"});
  expect_refused("a = 'never closed", {"c.toml:1:"});
  expect_refused("a = \xff", {"c.toml:1:"});
  expect_refused("[t", {"c.toml:1:"});
}

// Input on which toml++ 3.3 itself asserts.
TEST(TomlRead, BrokenTableNames) { expect_refused("a = 1\n[\nt]\n", {"c.toml: not TOML"}); }

// Characters beyond ASCII belong in strings and comments only. The last ones are some for which
// toml++ 3.3 runs into undefined behaviour, outside of strings and behind a line's end in one.
TEST(TomlRead, CharactersBeyondAscii) {
  const std::string e = "\u00e9", far = "\ufe7f", quotes = "\"\"\"";
  const TomlOptions expected = {{"a", e}, {e, e}, {"c", far}};
  EXPECT_EQ(parse("\xef\xbb\xbf# " + e + far + "\na = \"" + e + "\"\n'" + e + "' = '" + e +
                  "'\nc = " + quotes + "\\\n  " + far + quotes),
            expected);
  expect_refused("a = 1\nb" + e + " = 1", {"c.toml:2:"});
  expect_refused("a = 'x'" + e, {"c.toml:1:"});
  expect_refused("1m" + far, {"c.toml:1:"});
  expect_refused("a = 1 " + far, {"c.toml:1:"});
}

TEST(TomlRead, RefusesWhatOptionsCannotHold) {
  expect_refused("\nday = 2024-02-03\n", {"c.toml:2:7: \"day\" is a date, expected"});
  expect_refused("at = 01:02:03", {"c.toml:1:6: \"at\" is a time"});
  expect_refused("at = 2024-02-03T01:02:03Z", {"\"at\" is a date with time"});
  expect_refused("x = [1, 2.5]", {"c.toml:1:9: \"x\" is an array with a number with a fraction"});
  expect_refused("x = [1, 'a']", {"array with text, expected integers only"});
  expect_refused("x = [true]", {"array with true or false"});
  expect_refused("x = [[1]]", {"array with an array"});
  expect_refused("[[x]]\na = 1", {"array with a table"});
  expect_refused("x = [2024-02-03]", {"array with a date"});
  expect_refused("t.'a.b' = 1", {"c.toml:1:3: key \"a.b\" holds a dot"});
}

TEST(TomlRead, DeepNestingIsAnErrorNotACrash) {
  expect_refused("x = " + std::string(100000, '['), {"c.toml:1:"});
  std::string tables = "x = ";
  for (int i = 0; i < 10000; ++i) tables += "{a=";
  expect_refused(tables, {"c.toml:1:"});
}

TEST(TomlRead, MissingAndHugeFiles) {
  expect_error<InvalidArgument>([] { read_toml_options("/nonexistent/c.toml"); },
                                {"/nonexistent/c.toml", "No such file"});
  const TemporaryFolder folder;
  spill(folder / "c.toml", std::string((1 << 20) + 1, '\n'));
  expect_error<InvalidArgument>([&] { read_toml_options(folder / "c.toml"); },
                                {"has 1048577 bytes, expected at most 1048576"});
}

TEST(TomlWrite, IsPlainToml) {
  const json options = {{"model", "tiny"}, {"ema", true},      {"lr", 0.001},
                        {"one", 1.0},      {"depths", {2, 2}}, {"recipe", {{"epochs", 20}}}};
  EXPECT_EQ(format_toml_options(options),
            "depths = [2, 2]\nema = true\nlr = 0.001\nmodel = \"tiny\"\none = 1.0\n\n"
            "[recipe]\nepochs = 20\n");
}

TEST(TomlWrite, ReadsBackEqual) {
  const json options = {{"a", true},
                        {"big", INT64_MIN},
                        {"text", "quote \" back \\ tab \t line \n del \x7f caf\u00e9 \U0001F600"},
                        {"tiny", 1e-300},
                        {"third", 1.0 / 3.0},
                        {"none", json::array()},
                        {"many", {1, -2, 3}},
                        {"odd key", 1},
                        {"", 2},
                        {"t", {{"x", 1}, {"u", {{"y z", 2.5}}}}},
                        {"empty", json::object()}};
  const TemporaryFolder folder;
  write_toml_options(folder / "c.toml", options);
  const TomlOptions read = read_toml_options(folder / "c.toml");
  const std::map<std::string, std::string> got(read.begin(), read.end());
  const std::map<std::string, std::string> expected = {{"a", "true"},
                                                       {"big", "-9223372036854775808"},
                                                       {"text", options["text"].get<std::string>()},
                                                       {"tiny", "1e-300"},
                                                       {"third", "0.3333333333333333"},
                                                       {"none", ""},
                                                       {"many", "1,-2,3"},
                                                       {"odd key", "1"},
                                                       {"", "2"},
                                                       {"t.x", "1"},
                                                       {"t.u.y z", "2.5"}};
  EXPECT_EQ(got, expected);
}

TEST(TomlWrite, RefusesWhatCannotBeReadBack) {
  const auto refused = [](const json& options, std::initializer_list<std::string> parts) {
    expect_error<InvalidArgument>([&] { format_toml_options(options); }, parts);
  };
  refused(json::array(), {"options are array, expected an object"});
  refused({{"t", {{"x", nullptr}}}}, {"toml: \"t.x\" is null"});
  refused({{"x", NAN}}, {"\"x\" is nan, expected a finite number"});
  refused({{"x", INFINITY}}, {"\"x\" is inf"});
  refused({{"x", UINT64_MAX}}, {"\"x\" is 18446744073709551615, expected at most"});
  refused({{"x", {1, 2.5}}}, {"\"x\" is an array with number, expected integers only"});
  refused({{"x", {UINT64_MAX}}}, {"\"x\" is 18446744073709551615"});
  refused({{"a.b", 1}}, {"key \"a.b\" holds a dot"});
  refused({{"x", "\xff"}}, {"\"x\" is not UTF-8"});
  refused({{"\xff", 1}}, {"is not UTF-8"});
}

TEST(TomlWrite, FailedWritesAreIoErrors) {
  expect_error<IoError>([] { write_toml_options("/nonexistent/c.toml", json::object()); },
                        {"/nonexistent/c.toml", "No such file"});
}

}  // namespace
}  // namespace linescan::test
