// The IDX format of the MNIST family: a big-endian header (two zero bytes, a type code, the number
// of dimensions, then each size in 32 bits) and the row-major data. Plain or packed with gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "linescan/files/bytes.h"

namespace linescan {

struct IdxArray {
  std::vector<int64_t> sizes;  // [60000, 28, 28] for images, [60000] for labels
  std::vector<uint8_t> data;   // row-major
  std::string sha256;          // of the unpacked file, header included; only if asked for
};

// Unpacked bytes that a file may have at most, so that a small packed file cannot fill the memory.
inline constexpr int64_t kLongestIdx = int64_t{1} << 30;

struct IdxReading {
  bool with_sha256 = false;
  int64_t longest = kLongestIdx;
};

// Only unsigned bytes are read, of 1 to 4 dimensions; gzip is recognised by content. Throws
// InvalidArgument naming the file, with byte counts: wrong magic, other type, truncated, trailing
// bytes, too large.
IdxArray read_idx(const std::filesystem::path& path, const IdxReading& reading = {});

// The same from memory; `name` is what messages call it.
IdxArray parse_idx(ByteSpan bytes, const std::string& name, const IdxReading& reading = {});

}  // namespace linescan
