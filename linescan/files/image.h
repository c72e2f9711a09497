// PNG and JPEG pictures as 8-bit pixels, and pixels as PNG.
//
// What comes out is gray (1 channel) or RGB (3), whatever the file holds:
//   palettes become RGB, 1/2/4-bit gray is scaled to 0..255, of 16-bit samples the upper byte is
//   kept (as Pillow does for RGB); transparency is composited on black, so that colours which
//   nobody sees cannot steer a classifier; CMYK and YCCK JPEGs become RGB with Pillow's arithmetic.
// Gamma, colour profiles and the EXIF orientation are ignored, as Pillow ignores them by default.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "linescan/files/bytes.h"

namespace linescan {

struct Image {
  int64_t height = 0;
  int64_t width = 0;
  int64_t channels = 0;         // 1 or 3
  std::vector<uint8_t> pixels;  // [height, width, channels]
};

// Larger pictures are refused before memory is taken for them.
struct ImageLimits {
  int64_t side = 16384;                     // pixels
  int64_t pixels = int64_t{1} << 28;        // height x width
  int64_t file_bytes = int64_t{256} << 20;  // of the packed file
};

// Decodes a file; PNG or JPEG is told by its first bytes, not by its name. Throws InvalidArgument
// naming the file: not there, neither PNG nor JPEG, truncated, corrupt, over a limit (named).
Image read_image(const std::filesystem::path& path, const ImageLimits& limits = {});

// The same from memory; `name` is what messages call it.
Image decode_image(ByteSpan bytes, const std::string& name, const ImageLimits& limits = {});

// A PNG file with these pixels. Throws InvalidArgument for an image that is empty, has other than 1
// or 3 channels, or another number of pixels than its sizes say.
Bytes encode_png(const Image& image);

}  // namespace linescan
