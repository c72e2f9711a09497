#include "linescan/files/image_resize.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

// Pixel values are their own positions: [height, width, 1]
Image counting(int64_t height, int64_t width) {
  Image image{height, width, 1, {}};
  for (int64_t i = 0; i < height * width; ++i) image.pixels.push_back(static_cast<uint8_t>(i));
  return image;
}

TEST(CenterCrop, TakesTheMiddle) {
  const Image crop = center_crop(counting(4, 6), 2, 2);
  EXPECT_EQ(crop.height, 2);
  EXPECT_EQ(crop.width, 2);
  EXPECT_EQ(crop.pixels, (std::vector<uint8_t>{8, 9, 14, 15}));
}

// Margins of 1, 3, 5 begin at 0, 2, 2: halves round to even.
TEST(CenterCrop, OddMarginsRoundToEven) {
  EXPECT_EQ(center_crop(counting(1, 4), 1, 3).pixels[0], 0);
  EXPECT_EQ(center_crop(counting(1, 4), 1, 1).pixels[0], 2);
  EXPECT_EQ(center_crop(counting(1, 6), 1, 1).pixels[0], 2);
}

TEST(CenterCrop, KeepsChannelsTogether) {
  const Image image = read_image(sample("rgb8.png"));
  const Image crop = center_crop(image, 13, 1);
  ASSERT_EQ(crop.pixels.size(), 39u);
  for (int y = 0; y < 13; ++y)
    for (int c = 0; c < 3; ++c)
      EXPECT_EQ(crop.pixels[3 * y + c], image.pixels[(y * 17 + 8) * 3 + c]);
}

TEST(CenterCrop, RefusesWhatIsNotInside) {
  for (const auto& [height, width] : {std::pair{3, 7}, {5, 2}, {0, 1}, {1, -1}})
    expect_error<InvalidArgument>(
        [h = height, w = width] { center_crop(counting(4, 6), h, w); },
        {fmt::format("crop is {} x {}", height, width), "expected 1 x 1 to 4 x 6"});
}

TEST(Colour, GrayEqualsPillow) {
  const Image gray = to_gray(read_image(sample("rgb8.png")));
  EXPECT_EQ(gray.channels, 1);
  EXPECT_EQ(gray.pixels, read_image(sample("rgb8_as_gray.png")).pixels);
}

TEST(Colour, GrayAndBack) {
  const Image gray = counting(2, 3);
  const Image rgb = to_rgb(gray);
  EXPECT_EQ(rgb.channels, 3);
  EXPECT_EQ(rgb.pixels.size(), 18u);
  EXPECT_EQ(rgb.pixels[3], 1);
  EXPECT_EQ(rgb.pixels[5], 1);
  EXPECT_EQ(to_gray(rgb).pixels, gray.pixels);
  EXPECT_EQ(to_gray(gray).pixels, gray.pixels);
  EXPECT_EQ(to_rgb(rgb).pixels, rgb.pixels);
}

}  // namespace
}  // namespace linescan::test
