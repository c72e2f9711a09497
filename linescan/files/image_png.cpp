// PNG through libpng. Its errors arrive by longjmp, which skips destructors: the code between
// setjmp and the last libpng call keeps every object outside, in PngDecoder.
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>
#include <new>

#include "linescan/base/error.h"
#include "linescan/files/image.h"
#include "linescan/files/image_codec.h"

namespace linescan {
namespace {

class PngDecoder {
 public:
  PngDecoder(ByteSpan bytes, const std::string& name, const ImageLimits& limits)
      : bytes_(bytes), name_(name), limits_(limits) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (!info_) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // ours name the limit
    png_set_read_fn(png_, this, on_read);
  }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }

  Image decode() {
    check_chunks();
    if (!read_header()) fail();
    check_image_size(height_, width_, name_, limits_);
    check_plausible();
    pixels_.resize(height_ * row_bytes_);
    rows_.resize(height_);
    for (int64_t y = 0; y < height_; ++y) rows_[y] = pixels_.data() + y * row_bytes_;
    if (!read_pixels()) fail();
    return without_alpha();
  }

 private:
  [[noreturn]] void fail() {
    throw_error<InvalidArgument>("image: {} is a damaged PNG: {} (read {} of {} bytes)", name_,
                                 message_.data(), read_, bytes_.size());
  }

  // libpng takes the memory of a chunk before it looks for its bytes: a few bytes could ask for
  // gigabytes. So all chunks, each a length, a type, a body and a checksum, must lie in the file.
  void check_chunks() {
    constexpr std::size_t kSignature = 8, kType = 4, kOverhead = 12;
    std::size_t at = kSignature;
    while (true) {
      const std::size_t rest = bytes_.size() - at;
      const uint8_t* chunk = as_uint8(bytes_) + at;
      const std::size_t size = kOverhead + (rest < kOverhead ? 0 : png_get_uint_32(chunk));
      if (rest < size)
        throw_error<InvalidArgument>("image: {} is a truncated PNG: {} bytes, expected at least {}",
                                     name_, bytes_.size(), at + size);
      if (std::memcmp(chunk + kType, "IEND", 4) == 0) return;
      at += size;
    }
  }

  // Deflate packs at most 1032 to 1: a small file that declares a huge picture is cut short or
  // hostile, and is refused before its memory is taken.
  void check_plausible() {
    constexpr int64_t kDensest = 1032;
    const int64_t packed = static_cast<int64_t>(bytes_.size());
    if (height_ * file_row_bytes_ / kDensest > packed)
      throw_error<InvalidArgument>("image: {} is a truncated PNG: {} bytes cannot hold {} x {}",
                                   name_, packed, height_, width_);
  }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_info(png_, info_);
    height_ = png_get_image_height(png_, info_);
    width_ = png_get_image_width(png_, info_);
    file_row_bytes_ = static_cast<int64_t>(png_get_rowbytes(png_, info_));
    png_set_expand(png_);    // palette to RGB, 1/2/4-bit gray to 8, transparent colour to alpha
    png_set_strip_16(png_);  // keeps the upper byte
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    file_channels_ = png_get_channels(png_, info_);
    row_bytes_ = static_cast<int64_t>(png_get_rowbytes(png_, info_));
    return true;
  }

  bool read_pixels() {
    if (setjmp(png_jmpbuf(png_))) return false;
    png_read_image(png_, rows_.data());
    png_read_end(png_, nullptr);
    return true;
  }

  // [height, width, 1 to 4] -> [height, width, 1 or 3], composited on black where there is alpha.
  Image without_alpha() {
    const bool alpha = file_channels_ == 2 || file_channels_ == 4;
    const int channels = alpha ? file_channels_ - 1 : file_channels_;
    Image image{height_, width_, channels, std::move(pixels_)};
    if (!alpha) return image;
    uint8_t* to = image.pixels.data();
    const uint8_t* from = to;  // `to` never overtakes it
    for (int64_t i = 0; i < height_ * width_; ++i, from += channels + 1, to += channels) {
      const int opacity = from[channels];
      for (int c = 0; c < channels; ++c)
        to[c] = static_cast<uint8_t>((from[c] * opacity + 127) / 255);
    }
    image.pixels.resize(height_ * width_ * channels);
    return image;
  }

  static void on_read(png_structp png, png_bytep to, png_size_t size) {
    auto& self = *static_cast<PngDecoder*>(png_get_io_ptr(png));
    if (size > self.bytes_.size() - self.read_) png_error(png, "it ends too early");
    std::memcpy(to, self.bytes_.data() + self.read_, size);
    self.read_ += size;
  }

  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    auto& self = *static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::strncpy(self.message_.data(), message, self.message_.size() - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  const ByteSpan bytes_;
  const std::string& name_;
  const ImageLimits& limits_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::size_t read_ = 0;
  std::array<char, 128> message_{};
  int64_t height_ = 0;
  int64_t width_ = 0;
  int64_t file_row_bytes_ = 0;
  int64_t row_bytes_ = 0;
  int file_channels_ = 0;
  std::vector<uint8_t> pixels_;  // [height, width, file channels]
  std::vector<png_bytep> rows_;
};

}  // namespace

Image decode_png(ByteSpan bytes, const std::string& name, const ImageLimits& limits) {
  return PngDecoder(bytes, name, limits).decode();
}

Bytes encode_png(const Image& image) {
  if (image.height < 1 || image.width < 1 || (image.channels != 1 && image.channels != 3) ||
      static_cast<int64_t>(image.pixels.size()) != image.height * image.width * image.channels)
    throw_error<InvalidArgument>(
        "image: cannot encode {} bytes as [{}, {}, {}], expected [height, width, 1 or 3] bytes",
        image.pixels.size(), image.height, image.width, image.channels);
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  Bytes bytes(size);
  if (!png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr))
    throw_error<InvalidArgument>("image: cannot encode [{}, {}, {}] as PNG: {}", image.height,
                                 image.width, image.channels, png.message);
  bytes.resize(size);
  return bytes;
}

}  // namespace linescan
