#include "linescan/files/image_resize.h"

#include "tests/files/support.h"

namespace linescan::test {
namespace {

struct Size {
  int64_t height;
  int64_t width;
};
struct Filter {
  ResizeFilter filter;
  const char* name;
};
constexpr Filter kFilters[] = {{ResizeFilter::kBilinear, "bilinear"},
                               {ResizeFilter::kBicubic, "bicubic"}};

// Smaller, larger, one side only, one pixel, smaller and larger at once: stored by make_data.py.
TEST(Resize, EqualsPillowToTheBit) {
  for (const char* source : {"gray8", "rgb8"})
    for (const Size size : {Size{7, 5}, {32, 40}, {13, 6}, {29, 17}, {1, 1}, {3, 40}})
      for (const Filter& filter : kFilters) {
        const std::string file =
            fmt::format("resize_{}_{}x{}_{}.png", source, size.height, size.width, filter.name);
        const Image got = resize(read_image(sample(std::string(source) + ".png")), size.height,
                                 size.width, filter.filter);
        const Image expected = read_image(sample(file));
        EXPECT_EQ(got.height, size.height) << file;
        EXPECT_EQ(got.width, size.width) << file;
        EXPECT_EQ(got.channels, expected.channels) << file;
        EXPECT_EQ(got.pixels, expected.pixels) << file;
      }
}

TEST(Resize, SameSizeChangesNothing) {
  const Image image = read_image(sample("rgb8.png"));
  for (const Filter& filter : kFilters)
    EXPECT_EQ(resize(image, 13, 17, filter.filter).pixels, image.pixels);
}

TEST(Resize, ConstantStaysConstant) {
  for (const uint8_t value : {0, 1, 128, 255}) {
    const Image image{9, 11, 1, std::vector<uint8_t>(99, value)};
    for (const Filter& filter : kFilters)
      EXPECT_EQ(resize(image, 300, 4, filter.filter).pixels, std::vector<uint8_t>(1200, value));
  }
}

TEST(Resize, RefusesBadSizes) {
  const Image image{2, 2, 1, std::vector<uint8_t>(4)};
  for (const Size size : {Size{0, 2}, {2, -1}, {16385, 2}, {2, 16385}})
    expect_error<InvalidArgument>(
        [&] { resize(image, size.height, size.width, ResizeFilter::kBilinear); },
        {"cannot resize to", "expected 1 to 16384"});
  expect_error<InvalidArgument>([&] { resize({}, 2, 2, ResizeFilter::kBilinear); },
                                {"cannot resize 0 bytes that stand for [0, 0, 0]"});
  expect_error<InvalidArgument>(
      [&] {
        resize({2, 2, 3, std::vector<uint8_t>(4)}, 2, 2, ResizeFilter::kBilinear);
      },
      {"4 bytes that stand for [2, 2, 3]"});
}

}  // namespace
}  // namespace linescan::test
