#include "linescan/base/nearest.h"

#include <gtest/gtest.h>

#include <vector>

namespace linescan {
namespace {

TEST(Nearest, SmallestEditDistance) {
  const std::vector<std::string> names = {"train", "eval", "classify", "device"};
  EXPECT_EQ(nearest_name("trian", names), "train");
  EXPECT_EQ(nearest_name("evaluate", names), "eval");
  EXPECT_EQ(nearest_name("devices", names), "device");
  EXPECT_EQ(nearest_name("clasify", names), "classify");
  EXPECT_EQ(nearest_name("eval", names), "eval");
}

// Changing one letter, leaving one out and adding one all cost one; the first of equals wins.
TEST(Nearest, EveryKindOfEditCostsTheSame) {
  EXPECT_EQ(nearest_name("abc", std::vector<std::string>{"xyz", "abd"}), "abd");
  EXPECT_EQ(nearest_name("abc", std::vector<std::string>{"xyz", "ab"}), "ab");
  EXPECT_EQ(nearest_name("abc", std::vector<std::string>{"xyz", "abcd"}), "abcd");
  EXPECT_EQ(nearest_name("abc", std::vector<std::string>{"abd", "ab", "abcd"}), "abd");
}

TEST(Nearest, EdgesOfTheInput) {
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(nearest_name("", std::vector<std::string>{"long", "a"}), "a");
}

TEST(UnknownName, SuggestsAndListsShortTables) {
  EXPECT_EQ(unknown_name("command", "trian", std::vector<std::string>{"train", "eval"}),
            "unknown command 'trian'; did you mean 'train'? (known: train, eval)");
  EXPECT_EQ(unknown_name("command", "x", {}), "unknown command 'x'");
  // No name is near to nothing at all.
  EXPECT_EQ(unknown_name("command", "", std::vector<std::string>{"train", "eval"}),
            "unknown command '' (known: train, eval)");
}

TEST(UnknownName, LongTablesAreNotListed) {
  std::vector<std::string> names;
  for (int i = 0; i < 12; ++i) names.push_back("name" + std::to_string(i));
  EXPECT_NE(unknown_name("tensor", "name", names).find("known: name0"), std::string::npos);
  names.push_back("name12");
  EXPECT_EQ(unknown_name("tensor", "name", names), "unknown tensor 'name'; did you mean 'name0'?");
}

}  // namespace
}  // namespace linescan
