// JPEG through libjpeg(-turbo). Its errors arrive by longjmp, which skips destructors: the code
// between setjmp and the last libjpeg call keeps every object outside, in JpegDecoder.
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "linescan/base/error.h"
#include "linescan/files/image.h"
#include "linescan/files/image_codec.h"

// clang-format off: jpeglib.h needs <cstddef> and <cstdio> before it, jerror.h needs jpeglib.h.
#include <jerror.h>
#include <jpeglib.h>
// clang-format on

namespace linescan {
namespace {

class JpegDecoder {
 public:
  JpegDecoder(ByteSpan bytes, const std::string& name, const ImageLimits& limits)
      : bytes_(bytes), name_(name), limits_(limits) {
    jpeg_.err = jpeg_std_error(&errors_);
    jpeg_.client_data = this;
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    progress_.progress_monitor = on_progress;
  }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }  // harmless if not yet created

  Image decode() {
    if (!read_header()) fail();
    check_image_size(jpeg_.image_height, jpeg_.image_width, name_, limits_);
    const bool cmyk = jpeg_.num_components == 4;
    image_.height = jpeg_.image_height;
    image_.width = jpeg_.image_width;
    image_.channels = jpeg_.num_components == 1 ? 1 : 3;
    if (cmyk) row_.resize(image_.width * 4);
    if (!read_pixels(cmyk)) fail();
    return std::move(image_);
  }

 private:
  [[noreturn]] void fail() {
    throw_error<InvalidArgument>("image: {} is a damaged or unknown JPEG of {} bytes: {}", name_,
                                 bytes_.size(), message_.data());
  }

  bool read_header() {
    if (setjmp(jump_)) return false;
    jpeg_create_decompress(&jpeg_);
    // Progressive files keep all coefficients: two bytes for each of up to four channels, and
    // nothing else that is large.
    constexpr int64_t kBytesPerPixel = 10;
    constexpr int64_t kRest = 16 << 20;
    jpeg_.mem->max_memory_to_use = limits_.pixels * kBytesPerPixel + kRest;
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, as_uint8(bytes_), bytes_.size());
    jpeg_read_header(&jpeg_, TRUE);
    if (jpeg_.num_components == 1)
      jpeg_.out_color_space = JCS_GRAYSCALE;
    else if (jpeg_.num_components == 3)
      jpeg_.out_color_space = JCS_RGB;
    else if (jpeg_.num_components == 4)
      jpeg_.out_color_space = JCS_CMYK;
    else
      return note("number of colour channels is neither 1, 3 nor 4");
    return true;
  }

  bool read_pixels(bool cmyk) {
    if (setjmp(jump_)) return false;
    jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      uint8_t* pixels = room_for_row(jpeg_.output_scanline);
      JSAMPROW to = cmyk ? row_.data() : pixels;
      jpeg_read_scanlines(&jpeg_, &to, 1);
      if (cmyk) convert_cmyk(pixels);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  // Where row y goes. Memory grows with the rows that really come, not with the size declared.
  uint8_t* room_for_row(int64_t y) {
    constexpr int64_t kFirst = 1 << 20;
    const int64_t row = image_.width * image_.channels;
    const int64_t size = static_cast<int64_t>(image_.pixels.size());
    if (size < (y + 1) * row)
      image_.pixels.resize(
          std::min(std::max({2 * size, (y + 1) * row, kFirst}), image_.height * row));
    return image_.pixels.data() + y * row;
  }

  // row_ [width, 4] -> [width, 3]. The file holds inverted inks: light, not colour (Adobe's habit;
  // taken for granted in files without Adobe's marker too).
  void convert_cmyk(uint8_t* rgb) const {
    for (int64_t x = 0; x < image_.width; ++x)
      for (int c = 0; c < 3; ++c) {
        const int light = row_[4 * x + 3];
        const int scaled = (255 - row_[4 * x + c]) * light + 128;
        const int taken = ((scaled >> 8) + scaled) >> 8;  // scaled / 255, rounded
        rgb[3 * x + c] = static_cast<uint8_t>(std::max(light - taken, 0));
      }
  }

  bool note(const char* message) {
    std::strncpy(message_.data(), message, message_.size() - 1);
    return false;
  }

  static JpegDecoder& self(j_common_ptr jpeg) {
    return *static_cast<JpegDecoder*>(jpeg->client_data);
  }

  [[noreturn]] static void on_error(j_common_ptr jpeg) {
    jpeg->err->format_message(jpeg, self(jpeg).message_.data());
    std::longjmp(self(jpeg).jump_, 1);
  }

  // libjpeg fills what is missing with gray and merely warns. Warnings that leave the pixels as
  // they should be pass; all others are errors here.
  static void on_message(j_common_ptr jpeg, int level) {
    if (level >= 0) return;  // a trace
    switch (jpeg->err->msg_code) {
      case JWRN_EXTRANEOUS_DATA:
      case JWRN_JFIF_MAJOR:
      case JWRN_ADOBE_XFORM:
        return;
      default:
        on_error(jpeg);
    }
  }

  // A small file may ask for thousands of passes over a large picture.
  static void on_progress(j_common_ptr jpeg) {
    constexpr int kMostScans = 500;
    if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number <= kMostScans) return;
    self(jpeg).note("more than 500 scans");
    std::longjmp(self(jpeg).jump_, 1);
  }

  const ByteSpan bytes_;
  const std::string& name_;
  const ImageLimits& limits_;
  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  std::array<char, JMSG_LENGTH_MAX> message_{};
  Image image_;
  std::vector<uint8_t> row_;  // [width, 4], for CMYK
};

}  // namespace

Image decode_jpeg(ByteSpan bytes, const std::string& name, const ImageLimits& limits) {
  return JpegDecoder(bytes, name, limits).decode();
}

}  // namespace linescan
