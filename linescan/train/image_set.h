// Labelled images as bytes, the way they stay in memory for a whole run.
#pragma once

#include <cstdint>
#include <vector>

namespace linescan {

struct ImageSet {
  int64_t count = 0;
  int64_t channels = 1;
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> pixels;  // [count, channels, height, width]
  std::vector<uint8_t> labels;  // [count]

  int64_t image_bytes() const { return channels * height * width; }
  const uint8_t* image(int64_t index) const { return pixels.data() + index * image_bytes(); }
};

// A network sees (pixel / 255 - mean) / deviation.
struct Normalisation {
  double mean = 0;
  double deviation = 1;
};

}  // namespace linescan
