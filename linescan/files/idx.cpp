#include "linescan/files/idx.h"

#include <fmt/ranges.h>

#include "linescan/base/error.h"
#include "linescan/files/gzip.h"
#include "linescan/files/read_file.h"
#include "linescan/files/sha256.h"

namespace linescan {
namespace {

constexpr int kUnsignedByte = 0x08;
constexpr int kMaxDimensions = 4;

// [4] bytes, most significant first
uint32_t big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

IdxArray parse_plain(ByteSpan bytes, const std::string& name, const IdxReading& reading) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (size > reading.longest)
    throw_error<InvalidArgument>("idx: {} has {} bytes, expected at most {}", name, size,
                                 reading.longest);
  if (size < 4)
    throw_error<InvalidArgument>("idx: {} has {} bytes, expected at least 4", name, size);
  const uint8_t* header = as_uint8(bytes);
  const int dimensions = header[3];
  if (header[0] != 0 || header[1] != 0 || header[2] != kUnsignedByte || dimensions < 1 ||
      dimensions > kMaxDimensions)
    throw_error<InvalidArgument>(
        "idx: {} begins with {:02x}{:02x}{:02x}{:02x}, expected 0000{:02x} and 01 to {:02x} "
        "= unsigned bytes and the number of dimensions",
        name, header[0], header[1], header[2], header[3], kUnsignedByte, kMaxDimensions);
  const int64_t header_size = 4 + 4 * dimensions;
  if (size < header_size)
    throw_error<InvalidArgument>("idx: {} has {} bytes, expected at least {} = header of {} sizes",
                                 name, size, header_size, dimensions);

  IdxArray array;
  int64_t elements = 1;
  bool overflow = false;
  for (int i = 0; i < dimensions; ++i) {
    array.sizes.push_back(big_endian(header + 4 + 4 * i));
    overflow = __builtin_mul_overflow(elements, array.sizes.back(), &elements) || overflow;
  }
  // A product beyond 64 bits is more than any file has; it is shown as what it is.
  if (overflow)
    throw_error<InvalidArgument>("idx: {} has {} bytes, expected {} elements (truncated)", name,
                                 size, fmt::join(array.sizes, " x "));
  if (elements != size - header_size)
    throw_error<InvalidArgument>("idx: {} has {} bytes, expected {} = {} + {} ({})", name, size,
                                 header_size + elements, header_size, fmt::join(array.sizes, " x "),
                                 size - header_size < elements ? "truncated" : "trailing bytes");
  array.data.assign(header + header_size, header + size);
  if (reading.with_sha256) array.sha256 = sha256_hex(bytes);
  return array;
}

}  // namespace

IdxArray parse_idx(ByteSpan bytes, const std::string& name, const IdxReading& reading) {
  if (!is_gzip(bytes)) return parse_plain(bytes, name, reading);
  return parse_plain(gunzip(bytes, name, reading.longest), name, reading);
}

IdxArray read_idx(const std::filesystem::path& path, const IdxReading& reading) {
  return parse_idx(read_file(path, "idx", reading.longest), path.string(), reading);
}

}  // namespace linescan
