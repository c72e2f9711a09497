// Unpacking of gzip data with a bound on what comes out.
#pragma once

#include <cstdint>

#include "linescan/files/bytes.h"

namespace linescan {

// True for data that begins as gzip does.
bool is_gzip(ByteSpan bytes);

// The unpacked content of one or several gzip members in a row. Throws InvalidArgument naming
// `name`: truncated (with the byte counts), corrupt, wrong checksum, bytes behind the last member,
// or more than `longest` bytes of content.
Bytes gunzip(ByteSpan packed, std::string_view name, int64_t longest);

}  // namespace linescan
