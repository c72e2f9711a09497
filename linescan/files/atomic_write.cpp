#include "linescan/files/atomic_write.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "linescan/base/error.h"
#include "linescan/files/file_descriptor.h"

namespace linescan {
namespace {

namespace fs = std::filesystem;

// Call directly after the failed system call: reads errno.
[[noreturn]] void fail(std::string_view action, const fs::path& path) {
  const char* reason = std::strerror(errno);
  throw_error<IoError>("cannot {} {}: {}", action, path.string(), reason);
}

// A name beside `path` that no other writer uses; what carries it is removed unless renamed.
class TemporaryName {
 public:
  explicit TemporaryName(const fs::path& path) : path_(path) {
    static std::atomic<int> counter{0};
    path_ += fmt::format(".tmp-{}-{}", ::getpid(), counter++);
    ::unlink(path_.c_str());  // left by a killed process that had the same number
  }
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;
  ~TemporaryName() {
    if (!renamed_) ::unlink(path_.c_str());
  }

  const fs::path& path() const { return path_; }

  void rename_to(const fs::path& target) {
    if (std::rename(path_.c_str(), target.c_str()) != 0) fail("write", target);
    renamed_ = true;
  }

 private:
  fs::path path_;
  bool renamed_ = false;
};

void write_all(int descriptor, ByteSpan bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write", path);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// In /proc a link stands for what a process has open: /dev/stdout leads there.
bool is_open_file(const fs::path& link) {
  struct statfs system = {};
  return ::statfs(folder_of(link).c_str(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

// What a name leads to by way of symbolic links.
struct Target {
  fs::path path;
  bool replaceable = true;  // else it can only be written to
};

Target target_of(const fs::path& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    if (!S_ISDIR(status.st_mode)) return {path, false};
    errno = EISDIR;
    fail("write", path);
  }
  constexpr int kMostLinks = 40;  // as many as Linux follows
  Target target{path};
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    const fs::path next = fs::read_symlink(target.path, error);
    if (error) return target;  // no link, or not there yet
    if (is_open_file(target.path)) return {path, false};
    target.path = folder_of(target.path) / next;
  }
  errno = ELOOP;
  fail("write", path);
}

// No flush: devices and pipes know none. Behind what is there already, if it is a file that is open.
void write_through(const fs::path& path, std::span<const ByteSpan> parts) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC));
  if (!file) fail("write", path);
  for (const ByteSpan part : parts) write_all(file.get(), part, path);
  if (!file.close()) fail("write", path);
}

}  // namespace

void write_file_atomically(const fs::path& path, std::span<const ByteSpan> parts) {
  const Target target = target_of(path);
  if (!target.replaceable) return write_through(path, parts);
  TemporaryName temporary(target.path);
  FileDescriptor file(
      ::open(temporary.path().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file) fail("write", path);
  for (const ByteSpan part : parts) write_all(file.get(), part, path);
  if (::fsync(file.get()) != 0) fail("write", path);
  if (!file.close()) fail("write", path);
  temporary.rename_to(target.path);
  fsync_directory(folder_of(target.path));
}

void write_file_atomically(const fs::path& path, ByteSpan bytes) {
  write_file_atomically(path, std::span<const ByteSpan>(&bytes, 1));
}

void write_file_atomically(const fs::path& path, std::string_view text) {
  write_file_atomically(path, as_byte_span(text));
}

void fsync_directory(const fs::path& directory) {
  const FileDescriptor folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) fail("flush folder", directory);
  // Some network file systems know no flush of a folder and say EINVAL; there is nothing to do.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) fail("flush folder", directory);
}

void replace_symlink(const fs::path& target, const fs::path& link) {
  TemporaryName temporary(link);
  if (::symlink(target.c_str(), temporary.path().c_str()) != 0) fail("create link", link);
  temporary.rename_to(link);
  fsync_directory(folder_of(link));
}

}  // namespace linescan
