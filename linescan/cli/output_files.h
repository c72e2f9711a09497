// Files that commands write: looked at before the work whose results they are to hold.
#pragma once

#include <filesystem>
#include <string>

namespace linescan::cli {

// The whole path, of the file itself where `name` is a link to it.
std::filesystem::path file_of(const std::string& name);

// Throws InvalidArgument, naming the option `flag`, if `file` is a folder or cannot be written to.
void expect_writable(const std::string& flag, const std::string& file);

// Throws InvalidArgument if both options name one file.
void expect_different(const std::string& flag, const std::string& file,
                      const std::string& other_flag, const std::string& other);

}  // namespace linescan::cli
