#include "linescan/train/batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace linescan {
namespace {

// Pixel values that tell position and image apart.
ImageSet numbered(int64_t count, int64_t channels, int64_t height, int64_t width) {
  ImageSet images;
  images.count = count;
  images.channels = channels;
  images.height = height;
  images.width = width;
  for (int64_t i = 0; i < count * images.image_bytes(); ++i)
    images.pixels.push_back(static_cast<uint8_t>(1 + i * 37 % 251));
  images.labels.assign(count, 0);
  return images;
}

constexpr Normalisation kNormalisation{0.25, 0.5};

float normalised(int value) { return static_cast<float>((value / 255.0 - 0.25) / 0.5); }

// What the header says, pixel by pixel: mirror, then move, black where nothing came from.
float expected_pixel(const ImageSet& images, int64_t index, const Placement& placement,
                     int64_t channel, int64_t y, int64_t x) {
  const int64_t from_y = y - placement.down;
  int64_t from_x = x - placement.right;
  if (from_y < 0 || from_y >= images.height || from_x < 0 || from_x >= images.width)
    return normalised(0);
  if (placement.flip) from_x = images.width - 1 - from_x;
  return normalised(
      images.image(index)[(channel * images.height + from_y) * images.width + from_x]);
}

TEST(Batch, PlainIsNormalisedPixels) {
  const ImageSet images = numbered(3, 2, 4, 5);
  std::vector<float> out(2 * images.image_bytes(), std::nanf(""));
  BatchAssembler(kNormalisation).plain(images, std::vector<int64_t>{2, 0}, out.data());
  for (int64_t i = 0; i < images.image_bytes(); ++i) {
    EXPECT_EQ(out[i], normalised(images.image(2)[i]));
    EXPECT_EQ(out[images.image_bytes() + i], normalised(images.image(0)[i]));
  }
}

class Augmented : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(Augmented, EveryPixelIsWhereThePlacementPutsIt) {
  const auto [height, width, shift] = GetParam();
  const ImageSet images = numbered(40, 2, height, width);
  const Augmentation augmentation{true, shift};
  std::vector<int64_t> indices;
  for (int64_t i = 39; i >= 0; --i) indices.push_back(i);
  std::vector<float> out(images.count * images.image_bytes(), std::nanf(""));
  BatchAssembler(kNormalisation).augmented(images, indices, augmentation, 5, 2, out.data());
  const float* got = out.data();
  for (int64_t index : indices) {
    const Placement placement = draw_placement(augmentation, 5, 2, index);
    for (int64_t channel = 0; channel < 2; ++channel)
      for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x)
          ASSERT_EQ(*got++, expected_pixel(images, index, placement, channel, y, x))
              << "image " << index << " channel " << channel << " y " << y << " x " << x;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Augmented,
                         ::testing::Values(std::tuple(7, 5, 0), std::tuple(7, 5, 2),
                                           std::tuple(5, 7, 4), std::tuple(3, 3, 9),
                                           std::tuple(1, 1, 1)));

TEST(Placement, IsAFunctionOfSeedEpochAndIndex) {
  const Augmentation augmentation{true, 4};
  const Placement first = draw_placement(augmentation, 1, 0, 0);
  EXPECT_EQ(draw_placement(augmentation, 1, 0, 0), first);
  int same_seed = 0, same_epoch = 0, same_index = 0;
  for (int64_t i = 0; i < 100; ++i) {
    const Placement placement = draw_placement(augmentation, 1, 0, i);
    same_seed += placement == draw_placement(augmentation, 2, 0, i);
    same_epoch += placement == draw_placement(augmentation, 1, 1, i);
    same_index += placement == draw_placement(augmentation, 1, 0, i + 100);
  }
  // 162 equally likely placements: about 0.6 of 100 pairs agree by chance.
  EXPECT_LT(same_seed, 8);
  EXPECT_LT(same_epoch, 8);
  EXPECT_LT(same_index, 8);
}

TEST(Placement, AllPlacementsAreEquallyLikely) {
  std::map<std::tuple<bool, int64_t, int64_t>, int> seen;
  constexpr int kDraws = 18000;
  for (int64_t i = 0; i < kDraws; ++i) {
    const Placement placement = draw_placement({true, 1}, 7, 3, i);
    ++seen[{placement.flip, placement.down, placement.right}];
  }
  ASSERT_EQ(seen.size(), 18u);  // 2 x 3 x 3
  // 1000 each; the standard deviation is 31.
  for (const auto& [placement, count] : seen) EXPECT_NEAR(count, 1000, 190);
}

TEST(Placement, NothingHappensWhenSwitchedOff) {
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(draw_placement({false, 0}, 1, 0, i), Placement{});
}

TEST(Batch, TheSameImageLooksTheSameInAnyBatch) {
  const ImageSet images = numbered(10, 1, 6, 6);
  const BatchAssembler assembler(kNormalisation);
  const Augmentation augmentation{true, 2};
  std::vector<float> together(10 * 36), alone(36);
  std::vector<int64_t> order = {3, 1, 4, 0, 5, 9, 2, 6, 8, 7};
  assembler.augmented(images, order, augmentation, 1, 1, together.data());
  for (std::size_t i = 0; i < order.size(); ++i) {
    assembler.augmented(images, std::vector{order[i]}, augmentation, 1, 1, alone.data());
    EXPECT_EQ(std::memcmp(alone.data(), together.data() + 36 * i, 36 * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace linescan
