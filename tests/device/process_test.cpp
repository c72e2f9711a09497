#include "linescan/device/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <memory>

#include "linescan/device/cpu.h"

namespace linescan {
namespace {

TEST(Process, MemoryThatIsTouchedCounts) {
  constexpr int64_t kBytes = 64 << 20;
  const int64_t before = resident_memory();
  EXPECT_GT(before, 0);
  const std::unique_ptr<char[]> block(new char[kBytes]);
  for (int64_t i = 0; i < kBytes; i += 512) static_cast<volatile char*>(block.get())[i] = 1;
  EXPECT_GE(resident_memory(), before + kBytes * 9 / 10);
  EXPECT_GT(available_memory(), 0);
  EXPECT_LE(available_memory(), cpu().memory_bytes);
}

TEST(Process, FilesAreCountedAndLimited) {
  const int64_t before = open_files();
  const int file = ::open("/dev/null", O_RDONLY);
  EXPECT_EQ(open_files(), before + 1);
  ::close(file);
  EXPECT_EQ(open_files(), before);
  rlimit old = {};
  ::getrlimit(RLIMIT_NOFILE, &old);
  const rlimit few = {50, old.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  EXPECT_EQ(open_file_limit(), 50);
  ::setrlimit(RLIMIT_NOFILE, &old);
}

}  // namespace
}  // namespace linescan
