#include "linescan/train/run_folder.h"

#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;

TEST(RunFolder, IsMadeWithItsParentsAndNeverTwice) {
  const testing::TemporaryFolder parent;
  const fs::path run = parent.path() / "deep" / "run";
  create_run_folder(run);
  EXPECT_TRUE(fs::is_directory(run));
  EXPECT_THROW(create_run_folder(run), InvalidArgument);
  EXPECT_THROW(create_run_folder(run.string() + "/"), InvalidArgument);
  create_run_folder(parent.path() / "with-slash/");
  EXPECT_TRUE(fs::is_directory(parent.path() / "with-slash"));
}

TEST(RunFolder, AFileInTheWayIsNotOverwritten) {
  const testing::TemporaryFolder parent;
  testing::write_text(parent.path() / "run", "precious");
  EXPECT_THROW(create_run_folder(parent.path() / "run"), Error);
  EXPECT_THROW(create_run_folder(parent.path() / "run" / "below"), Error);
  EXPECT_EQ(testing::read_text(parent.path() / "run"), "precious");
}

TEST(RunFolder, NumbersGoOnAfterTheLargest) {
  const testing::TemporaryFolder parent;
  const fs::path runs = parent.path() / "runs";
  EXPECT_EQ(create_numbered_run_folder(runs), runs / "001");
  EXPECT_EQ(create_numbered_run_folder(runs), runs / "002");
  fs::create_directories(runs / "041");
  fs::create_directories(runs / "first");
  EXPECT_EQ(create_numbered_run_folder(runs), runs / "042");
}

}  // namespace
}  // namespace linescan
