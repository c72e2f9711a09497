#include "linescan/files/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <new>

#include "linescan/base/error.h"

namespace linescan {
namespace {

class Inflater {
 public:
  Inflater() {
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream_, kGzipOnly + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { ::inflateEnd(&stream_); }

  z_stream* operator->() { return &stream_; }
  z_stream* get() { return &stream_; }

 private:
  z_stream stream_{};
};

}  // namespace

bool is_gzip(ByteSpan bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1f} && bytes[1] == std::byte{0x8b};
}

Bytes gunzip(ByteSpan packed, std::string_view name, int64_t longest) {
  constexpr std::size_t kStep = std::size_t{1} << 20;  // also keeps zlib's 32-bit counts safe
  Inflater inflater;
  Bytes content;
  std::size_t read = 0;     // of packed
  std::size_t written = 0;  // of content
  while (true) {
    // One byte more than allowed shows that there is too much.
    if (written == content.size())
      content.resize(std::min<std::size_t>(written + std::max(kStep, written), longest + 1));
    const std::size_t in = std::min(packed.size() - read, kStep);
    const std::size_t out = std::min(content.size() - written, kStep);
    inflater->next_in = const_cast<Bytef*>(as_uint8(packed.subspan(read)));
    inflater->avail_in = static_cast<uInt>(in);
    inflater->next_out = reinterpret_cast<Bytef*>(content.data() + written);
    inflater->avail_out = static_cast<uInt>(out);
    const int result = ::inflate(inflater.get(), Z_NO_FLUSH);
    read += in - inflater->avail_in;
    written += out - inflater->avail_out;
    if (static_cast<int64_t>(written) > longest)
      throw_error<InvalidArgument>("gzip: {} unpacks to more than {} bytes", name, longest);
    if (result == Z_STREAM_END) {
      if (read == packed.size()) break;
      if (!is_gzip(packed.subspan(read)))
        throw_error<InvalidArgument>("gzip: {} has {} bytes behind its end, expected none", name,
                                     packed.size() - read);
      ::inflateReset(inflater.get());
    } else if (result == Z_BUF_ERROR ||
               (result == Z_OK && read == packed.size() && inflater->avail_out > 0)) {
      throw_error<InvalidArgument>(
          "gzip: {} is truncated: its {} bytes unpack to {}, then the end is missing", name,
          packed.size(), written);
    } else if (result != Z_OK) {
      throw_error<InvalidArgument>("gzip: {} is corrupt after {} of {} bytes: {}", name, read,
                                   packed.size(), inflater->msg ? inflater->msg : "bad header");
    }
  }
  content.resize(written);
  return content;
}

}  // namespace linescan
