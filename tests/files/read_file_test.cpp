#include "linescan/files/read_file.h"

#include "tests/files/support.h"

namespace linescan::test {
namespace {

TEST(ReadFile, GivesAllBytes) {
  const TemporaryFolder folder;
  const std::string text("a\0b\n", 4);
  spill(folder / "x", text);
  EXPECT_EQ(as_text(read_file(folder / "x", "test")), text);
  spill(folder / "empty", "");
  EXPECT_TRUE(read_file(folder / "empty", "test").empty());
}

TEST(ReadFile, NamesWhatCannotBeRead) {
  const TemporaryFolder folder;
  expect_error<InvalidArgument>([&] { read_file(folder / "none", "idx"); },
                                {"idx: ", (folder / "none").string(), "No such file"});
  expect_error<InvalidArgument>([&] { read_file(folder.path(), "idx"); },
                                {folder.path().string(), "a folder", "expected a file"});
  expect_error<InvalidArgument>([&] { read_file("/dev/zero", "idx"); },
                                {"/dev/zero is not a regular file"});
}

TEST(ReadFile, RefusesMoreThanAllowed) {
  const TemporaryFolder folder;
  spill(folder / "x", "12345");
  EXPECT_EQ(read_file(folder / "x", "test", 5).size(), 5u);
  expect_error<InvalidArgument>([&] { read_file(folder / "x", "test", 4); },
                                {"has 5 bytes, expected at most 4"});
}

}  // namespace
}  // namespace linescan::test
