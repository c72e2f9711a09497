#include <algorithm>
#include <cmath>

#include "linescan/base/error.h"
#include "linescan/files/image_resize.h"

namespace linescan {

Image center_crop(const Image& image, int64_t height, int64_t width) {
  if (height < 1 || width < 1 || height > image.height || width > image.width)
    throw_error<InvalidArgument>("image: crop is {} x {}, expected 1 x 1 to {} x {}", height, width,
                                 image.height, image.width);
  const auto offset = [](int64_t margin) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(margin) / 2));
  };
  const int64_t top = offset(image.height - height);
  const int64_t left = offset(image.width - width);
  Image crop{height, width, image.channels, {}};
  crop.pixels.reserve(height * width * image.channels);
  for (int64_t y = 0; y < height; ++y) {
    const auto row = image.pixels.begin() + ((top + y) * image.width + left) * image.channels;
    crop.pixels.insert(crop.pixels.end(), row, row + width * image.channels);
  }
  return crop;
}

Image to_gray(const Image& image) {
  if (image.channels == 1) return image;
  Image gray{image.height, image.width, 1, {}};
  gray.pixels.resize(image.height * image.width);
  const uint8_t* rgb = image.pixels.data();
  // 0.299, 0.587, 0.114 times 2^16
  for (uint8_t& pixel : gray.pixels) {
    pixel = static_cast<uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
    rgb += 3;
  }
  return gray;
}

Image to_rgb(const Image& image) {
  if (image.channels == 3) return image;
  Image rgb{image.height, image.width, 3, {}};
  rgb.pixels.reserve(image.pixels.size() * 3);
  for (const uint8_t pixel : image.pixels) rgb.pixels.insert(rgb.pixels.end(), 3, pixel);
  return rgb;
}

}  // namespace linescan
