// Data packed for the tests: gzip by zlib, IDX by hand.
#pragma once

#include <zlib.h>

#include <string>
#include <vector>

namespace linescan::test {

inline std::string gzip(const std::string& content) {
  z_stream stream{};
  constexpr int kGzip = 16 + MAX_WBITS;
  ::deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, 9, Z_DEFAULT_STRATEGY);
  std::string packed(::deflateBound(&stream, content.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  ::deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

// An IDX file of unsigned bytes.
inline std::string idx_file(const std::vector<uint32_t>& sizes, const std::string& data) {
  std::string file = {'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const uint32_t size : sizes)
    for (int shift = 24; shift >= 0; shift -= 8) file += static_cast<char>(size >> shift & 0xff);
  return file + data;
}

}  // namespace linescan::test
