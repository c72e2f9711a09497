#include "linescan/files/image.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/files/image_codec.h"
#include "linescan/files/read_file.h"

namespace linescan {
namespace {

using namespace std::literals;

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n"sv;
constexpr std::string_view kJpegSignature = "\xff\xd8\xff"sv;

std::string first_bytes(ByteSpan bytes) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (const std::byte byte : bytes.first(std::min(bytes.size(), kShown)))
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", static_cast<unsigned>(byte));
  return text.empty() ? "is empty" : "begins with " + text;
}

}  // namespace

void check_image_size(int64_t height, int64_t width, const std::string& name,
                      const ImageLimits& limits) {
  if (height < 1 || width < 1)
    throw_error<InvalidArgument>("image: {} has {} x {} pixels, expected at least 1 x 1", name,
                                 height, width);
  if (height > limits.side || width > limits.side)
    throw_error<InvalidArgument>("image: {} has {} x {} pixels, expected at most {} a side", name,
                                 height, width, limits.side);
  if (height * width > limits.pixels)
    throw_error<InvalidArgument>("image: {} has {} x {} pixels, expected at most {} in all", name,
                                 height, width, limits.pixels);
}

Image decode_image(ByteSpan bytes, const std::string& name, const ImageLimits& limits) {
  const std::string_view text = as_text(bytes);
  if (text.starts_with(kPngSignature)) return decode_png(bytes, name, limits);
  if (text.starts_with(kJpegSignature)) return decode_jpeg(bytes, name, limits);
  throw_error<InvalidArgument>("image: {} {}, expected a PNG or JPEG picture", name,
                               first_bytes(bytes));
}

Image read_image(const std::filesystem::path& path, const ImageLimits& limits) {
  return decode_image(read_file(path, "image", limits.file_bytes), path.string(), limits);
}

}  // namespace linescan
