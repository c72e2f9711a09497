#include "linescan/files/atomic_write.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <csignal>

#include "linescan/files/file_descriptor.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

namespace fs = std::filesystem;

// The names in a folder: what a failed write must not add to.
std::vector<std::string> listing(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

TEST(AtomicWrite, CreatesAndReplaces) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", "old");
  EXPECT_EQ(slurp(folder / "x"), "old");
  write_file_atomically(folder / "x", "new and longer");
  EXPECT_EQ(slurp(folder / "x"), "new and longer");
  write_file_atomically(folder / "x", std::string_view());
  EXPECT_EQ(slurp(folder / "x"), "");
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{"x"});
}

TEST(AtomicWrite, JoinsParts) {
  const TemporaryFolder folder;
  const std::array<ByteSpan, 3> parts = {as_byte_span("one "), ByteSpan(), as_byte_span("two")};
  write_file_atomically(folder / "x", parts);
  EXPECT_EQ(slurp(folder / "x"), "one two");
}

TEST(AtomicWrite, BareNamesAreInTheCurrentFolder) {
  const TemporaryFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  write_file_atomically("x", "here");
  replace_symlink("x", "link");
  fs::current_path(before);
  EXPECT_EQ(slurp(folder / "link"), "here");
}

TEST(AtomicWrite, ModeFollowsTheUmask) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  write_file_atomically(folder / "x", "text");
  ::umask(before);
  EXPECT_EQ(fs::status(folder / "x").permissions(), fs::perms(0640));
}

TEST(AtomicWrite, MissingFolderAndFolderInTheWay) {
  const TemporaryFolder folder;
  expect_error<IoError>([&] { write_file_atomically(folder / "none" / "x", "text"); },
                        {"cannot write", (folder / "none" / "x").string(), "No such file"});
  fs::create_directory(folder / "taken");
  expect_error<IoError>([&] { write_file_atomically(folder / "taken", "text"); },
                        {(folder / "taken").string(), "Is a directory"});
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{"taken"});
}

TEST(AtomicWrite, FollowsLinksToTheFile) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "kept");
  fs::create_symlink(fs::path("kept") / "x", folder / "near");
  fs::create_symlink(folder / "near", folder / "far");
  write_file_atomically(folder / "far", "to a file that is not there yet");
  write_file_atomically(folder / "near", "new");
  EXPECT_EQ(slurp(folder / "kept" / "x"), "new");
  EXPECT_TRUE(fs::is_symlink(folder / "near"));
  EXPECT_TRUE(fs::is_symlink(folder / "far"));
  EXPECT_EQ(listing(folder / "kept"), std::vector<std::string>{"x"});
  EXPECT_EQ(listing(folder.path()).size(), 3u);

  fs::create_symlink("round", folder / "round");
  expect_error<IoError>([&] { write_file_atomically(folder / "round", "text"); },
                        {"cannot write", (folder / "round").string(), "Too many levels"});
  fs::create_symlink("kept", folder / "taken");
  expect_error<IoError>([&] { write_file_atomically(folder / "taken", "text"); },
                        {(folder / "taken").string(), "Is a directory"});
}

TEST(AtomicWrite, WritesIntoAPipe) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  // Both ends at once, so that neither this nor the write waits for the other.
  const FileDescriptor pipe(::open((folder / "pipe").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(pipe);
  fs::create_symlink("pipe", folder / "link");
  write_file_atomically(folder / "pipe", "one ");
  write_file_atomically(folder / "link", "two");
  std::array<char, 16> got{};
  EXPECT_EQ(::read(pipe.get(), got.data(), got.size()), 7);
  EXPECT_STREQ(got.data(), "one two");
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  EXPECT_EQ(listing(folder.path()).size(), 2u);
}

// As /dev/stdout: what the process has written there itself must stay.
TEST(AtomicWrite, AddsToAFileThatIsOpen) {
  const TemporaryFolder folder;
  spill(folder / "x", "tables, ");
  const FileDescriptor open(::open((folder / "x").c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(open);
  write_file_atomically("/proc/self/fd/" + std::to_string(open.get()), "page");
  EXPECT_EQ(slurp(folder / "x"), "tables, page");
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{"x"});
}

// A device of its own: a fault here must not cost the machine's.
TEST(AtomicWrite, FullDeviceStaysADevice) {
  const TemporaryFolder folder;
  const fs::path full = folder / "full";
  constexpr int kMemoryDevices = 1, kFull = 7;
  if (::mknod(full.c_str(), S_IFCHR | 0600, makedev(kMemoryDevices, kFull)) != 0)
    GTEST_SKIP() << "no right to make a device";
  if (const FileDescriptor device(::open(full.c_str(), O_WRONLY | O_CLOEXEC)); !device)
    GTEST_SKIP() << "no right to open a device here";
  expect_error<IoError>([&] { write_file_atomically(full, "text"); },
                        {"cannot write", full.string(), "No space left on device"});
  EXPECT_TRUE(fs::is_character_file(full));
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{"full"});
}

// A file size limit fails in write() halfway, like a full disk, and needs no special rights.
TEST(AtomicWrite, FailureMidwayKeepsTheOldFile) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    write_file_atomically(folder / "x", std::string(100000, 'n'));
  } catch (const IoError& error) {
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "cannot write " + (folder / "x").string() + ": File too large");
  EXPECT_EQ(slurp(folder / "x"), "old");
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{"x"});
}

TEST(AtomicWrite, FullDiskKeepsTheOldFile) {
  const TemporaryFolder folder;
  if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "no right to mount a small file system";
  const struct Unmount {
    const fs::path& path;
    ~Unmount() { EXPECT_EQ(::umount2(path.c_str(), MNT_DETACH), 0); }
  } unmount{folder.path()};
  write_file_atomically(folder / "x", "old");
  expect_error<IoError>([&] { write_file_atomically(folder / "x", std::string(1 << 20, 'n')); },
                        {"cannot write", (folder / "x").string(), "No space left on device"});
  EXPECT_EQ(slurp(folder / "x"), "old");
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{"x"});
}

TEST(FsyncDirectory, NeedsAFolder) {
  const TemporaryFolder folder;
  fsync_directory(folder.path());
  spill(folder / "x", "text");
  expect_error<IoError>([&] { fsync_directory(folder / "x"); },
                        {"cannot flush folder", (folder / "x").string(), "Not a directory"});
  expect_error<IoError>([&] { fsync_directory(folder / "none"); }, {"No such file"});
}

TEST(ReplaceSymlink, CreatesAndMoves) {
  const TemporaryFolder folder;
  fs::create_directory(folder / "step-1");
  fs::create_directory(folder / "step-2");
  replace_symlink("step-1", folder / "last");
  EXPECT_EQ(fs::read_symlink(folder / "last"), "step-1");
  replace_symlink("step-2", folder / "last");
  EXPECT_EQ(fs::read_symlink(folder / "last"), "step-2");
  EXPECT_TRUE(fs::is_directory(folder / "last"));
  EXPECT_EQ(listing(folder.path()).size(), 3u);
}

TEST(ReplaceSymlink, FailureLeavesNothingBehind) {
  const TemporaryFolder folder;
  expect_error<IoError>([&] { replace_symlink("step-1", folder / "none" / "last"); },
                        {"cannot create link", "last", "No such file"});
  fs::create_directory(folder / "taken");
  expect_error<IoError>([&] { replace_symlink("step-1", folder / "taken"); },
                        {(folder / "taken").string(), "directory"});
  EXPECT_EQ(listing(folder.path()), std::vector<std::string>{"taken"});
}

}  // namespace
}  // namespace linescan::test
