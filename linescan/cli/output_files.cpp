#include "linescan/cli/output_files.h"

#include <unistd.h>

#include "linescan/base/error.h"

namespace linescan::cli {

namespace fs = std::filesystem;

fs::path file_of(const std::string& name) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(fs::absolute(name), error);
  return error ? fs::path(name) : file;
}

void expect_writable(const std::string& flag, const std::string& file) {
  if (fs::is_directory(file))
    throw_error<InvalidArgument>("{} is {}, which is a folder, expected a file to write", flag,
                                 file);
  if (fs::is_other(file)) {  // a device or a pipe: it is not replaced
    if (::access(file.c_str(), W_OK) != 0)
      throw_error<InvalidArgument>("{} is {}, which cannot be written to", flag, file);
    return;
  }
  const fs::path parent = file_of(file).parent_path();
  const std::string folder = parent.empty() ? "." : parent.string();
  if (!fs::is_directory(folder))
    throw_error<InvalidArgument>("{} is {}, but there is no folder {}", flag, file, folder);
  if (::access(folder.c_str(), W_OK) != 0)
    throw_error<InvalidArgument>("{} is {}, but the folder {} cannot be written to", flag, file,
                                 folder);
}

void expect_different(const std::string& flag, const std::string& file,
                      const std::string& other_flag, const std::string& other) {
  std::error_code error;  // hard links are one file under two paths
  if (file_of(file) == file_of(other) || fs::equivalent(file, other, error))
    throw_error<InvalidArgument>("{} and {} are both {}, expected two files", flag, other_flag,
                                 file);
}

}  // namespace linescan::cli
