#include "linescan/files/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "linescan/base/error.h"
#include "linescan/files/file_descriptor.h"

namespace linescan {

Bytes read_file(const std::filesystem::path& path, std::string_view format, int64_t longest) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0)
    throw_error<InvalidArgument>("{}: cannot read {}: {}", format, path.string(),
                                 std::strerror(errno));
  if (!S_ISREG(status.st_mode))
    throw_error<InvalidArgument>("{}: {} is {}, expected a file", format, path.string(),
                                 S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
  if (status.st_size > longest)
    throw_error<InvalidArgument>("{}: {} has {} bytes, expected at most {}", format, path.string(),
                                 static_cast<int64_t>(status.st_size), longest);

  Bytes bytes(status.st_size);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw_error<InvalidArgument>("{}: cannot read {}: {}", format, path.string(),
                                   std::strerror(errno));
    if (got == 0)
      throw_error<InvalidArgument>("{}: {} ended after {} bytes while being read, expected {}",
                                   format, path.string(), done, bytes.size());
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace linescan
