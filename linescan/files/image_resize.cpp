// Resampling by convolution. Output pixel i stands at input position c = (i + 1/2) s with
// s = in / out; it is the weighted mean of the input pixels within r = support * max(s, 1) of c,
// weights f((j + 1/2 - c) / max(s, 1)) normalised to 1 in double and then rounded to 22 bits after
// the point. Equal to Pillow only with exactly these roundings, tests/files/image_resize_test.cpp.
#include "linescan/files/image_resize.h"

#include <algorithm>
#include <cmath>

#include "linescan/base/error.h"

namespace linescan {
namespace {

constexpr int64_t kMaxSide = 16384;
constexpr int kFraction = 22;  // 8 bits of pixel and 2 of overshoot are left in 32

double support_of(ResizeFilter filter) { return filter == ResizeFilter::kBilinear ? 1.0 : 2.0; }

// The filter at distance |x|: a triangle, or Keys' cubic with a = -1/2.
double value_of(ResizeFilter filter, double x) {
  x = std::abs(x);
  if (filter == ResizeFilter::kBilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// The input pixels first, first + 1, ... of one output pixel and their weights.
struct Taps {
  int64_t first = 0;
  std::vector<int32_t> weights;  // times 2^kFraction
};

std::vector<Taps> taps_of(int64_t in, int64_t out, ResizeFilter filter) {
  const double step = static_cast<double>(in) / static_cast<double>(out);
  const double widening = std::max(step, 1.0);
  const double radius = support_of(filter) * widening;
  const double shrink = 1.0 / widening;
  std::vector<Taps> taps(out);
  std::vector<double> exact;
  for (int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * step;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - radius + 0.5), 0);
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(center + radius + 0.5), in);
    exact.clear();
    double sum = 0;
    for (int64_t j = first; j < last; ++j) {
      exact.push_back(value_of(filter, (static_cast<double>(j) - center + 0.5) * shrink));
      sum += exact.back();
    }
    taps[i].first = first;
    for (const double weight : exact) {
      const double scaled = (sum != 0 ? weight / sum : weight) * (1 << kFraction);
      taps[i].weights.push_back(static_cast<int32_t>(scaled + (scaled < 0 ? -0.5 : 0.5)));
    }
  }
  return taps;
}

// One output value: pixels `stride` apart, weighted, rounded and clipped to a byte.
uint8_t weigh(const uint8_t* pixels, int64_t stride, const std::vector<int32_t>& weights) {
  int32_t sum = 1 << (kFraction - 1);
  for (const int32_t weight : weights) {
    sum += *pixels * weight;
    pixels += stride;
  }
  return static_cast<uint8_t>(std::clamp(sum >> kFraction, 0, 255));
}

Image resize_rows(const Image& image, int64_t width, ResizeFilter filter) {
  const std::vector<Taps> taps = taps_of(image.width, width, filter);
  const int64_t channels = image.channels;
  Image result{image.height, width, channels, {}};
  result.pixels.resize(image.height * width * channels);
  uint8_t* to = result.pixels.data();
  for (int64_t y = 0; y < image.height; ++y) {
    const uint8_t* row = image.pixels.data() + y * image.width * channels;
    for (const Taps& tap : taps)
      for (int64_t c = 0; c < channels; ++c)
        *to++ = weigh(row + tap.first * channels + c, channels, tap.weights);
  }
  return result;
}

Image resize_columns(const Image& image, int64_t height, ResizeFilter filter) {
  const int64_t row_bytes = image.width * image.channels;
  Image result{height, image.width, image.channels, {}};
  result.pixels.resize(height * row_bytes);
  uint8_t* to = result.pixels.data();
  for (const Taps& tap : taps_of(image.height, height, filter))
    for (int64_t x = 0; x < row_bytes; ++x)
      *to++ = weigh(image.pixels.data() + tap.first * row_bytes + x, row_bytes, tap.weights);
  return result;
}

}  // namespace

Image resize(const Image& image, int64_t height, int64_t width, ResizeFilter filter) {
  if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide)
    throw_error<InvalidArgument>("image: cannot resize to {} x {}, expected 1 to {} a side", height,
                                 width, kMaxSide);
  if (image.height < 1 || image.width < 1 || image.channels < 1 ||
      static_cast<int64_t>(image.pixels.size()) != image.height * image.width * image.channels)
    throw_error<InvalidArgument>("image: cannot resize {} bytes that stand for [{}, {}, {}]",
                                 image.pixels.size(), image.height, image.width, image.channels);
  // A pass that changes nothing is left out: it would not round, but it would take time.
  Image result = width == image.width ? image : resize_rows(image, width, filter);
  return height == image.height ? result : resize_columns(result, height, filter);
}

}  // namespace linescan
