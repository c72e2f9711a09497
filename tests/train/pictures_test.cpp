#include "linescan/train/pictures.h"

#include <gtest/gtest.h>

#include <random>

#include "linescan/base/error.h"
#include "linescan/files/atomic_write.h"
#include "linescan/train/base64.h"
#include "tests/train/tiny_run.h"

namespace linescan {
namespace {

using testing::TemporaryFolder;
using testing::write_text;

ImageSet empty_set(int64_t channels, int64_t height, int64_t width) {
  ImageSet images;
  images.channels = channels;
  images.height = height;
  images.width = width;
  return images;
}

TEST(Pictures, ImagesOfTheRightSizePassUnchanged) {
  for (int64_t channels : {1, 3}) {
    ImageSet images = empty_set(channels, 5, 7);
    std::mt19937 generator(1);
    images.count = 2;
    for (int64_t i = 0; i < 2 * images.image_bytes(); ++i)
      images.pixels.push_back(static_cast<uint8_t>(generator()));
    ImageSet copy = empty_set(channels, 5, 7);
    for (int64_t i = 0; i < 2; ++i)
      append_picture(&copy, decode_image(encode_png(image_of(images, i)), "test"));
    EXPECT_EQ(copy.pixels, images.pixels);
    EXPECT_EQ(copy.count, 2);
  }
}

TEST(Pictures, ChannelsAndSizesAreMadeToFit) {
  Image red{20, 10, 3, {}};
  for (int i = 0; i < 200; ++i) red.pixels.insert(red.pixels.end(), {200, 0, 0});
  ImageSet gray = empty_set(1, 4, 4);
  append_picture(&gray, red);
  EXPECT_EQ(gray.pixels, std::vector<uint8_t>(16, 60));  // 0.299 of 200
  ImageSet color = empty_set(3, 2, 2);
  append_picture(&color, Image{1, 1, 1, {90}});
  EXPECT_EQ(color.pixels, std::vector<uint8_t>(12, 90));
}

TEST(Pictures, FoldersStandForThePicturesInThem) {
  const TemporaryFolder folder;
  for (const char* name : {"b.PNG", "a.jpeg", "c.jpg", "notes.txt"})
    write_text(folder.path() / name, "x");
  const std::vector<std::string> paths = {(folder.path() / "notes.txt").string(),
                                          folder.path().string()};
  std::vector<std::string> names;
  for (const auto& file : picture_files(paths)) names.push_back(file.filename());
  EXPECT_EQ(names, (std::vector<std::string>{"notes.txt", "a.jpeg", "b.PNG", "c.jpg"}));
}

TEST(Pictures, RefusesWhatHasNoPictures) {
  const TemporaryFolder folder;
  EXPECT_THROW(picture_files(std::vector{folder.path().string()}), InvalidArgument);
  EXPECT_THROW(picture_files(std::vector<std::string>{"/does/not/exist.png"}), InvalidArgument);
}

TEST(Base64, EncodesTheExamplesOfItsStandard) {
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"}};
  for (const auto& [text, encoded] : examples) EXPECT_EQ(base64(as_byte_span(text)), encoded);
  EXPECT_EQ(base64(as_byte_span("\xfb\xff\xfe")), "+//+");
}

}  // namespace
}  // namespace linescan
