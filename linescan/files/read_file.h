// A whole file in memory. Files are read, not mapped: one that shrinks under a map is a SIGBUS,
// under a read it is an error with a name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

#include "linescan/files/bytes.h"

namespace linescan {

// Throws InvalidArgument naming `format` and the path: not there, a folder, unreadable, longer
// than `longest` bytes, changed while being read.
Bytes read_file(const std::filesystem::path& path, std::string_view format,
                int64_t longest = std::numeric_limits<int64_t>::max());

}  // namespace linescan
