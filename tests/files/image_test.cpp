#include "linescan/files/image.h"

#include <zlib.h>

#include <cstdlib>
#include <ostream>

#include "linescan/files/read_file.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

void expect_equal(const Image& got, const Image& expected, int tolerance = 0) {
  ASSERT_EQ(got.height, expected.height);
  ASSERT_EQ(got.width, expected.width);
  ASSERT_EQ(got.channels, expected.channels);
  ASSERT_EQ(got.pixels.size(), expected.pixels.size());
  for (std::size_t i = 0; i < got.pixels.size(); ++i)
    ASSERT_LE(std::abs(got.pixels[i] - expected.pixels[i]), tolerance) << "pixel byte " << i;
}

// A sample and the plain 8-bit PNG that it must decode to.
struct Pair {
  const char* file;
  const char* expected;
};
void PrintTo(const Pair& pair, std::ostream* out) { *out << pair.file; }
class StoredPictures : public testing::TestWithParam<Pair> {};

TEST_P(StoredPictures, DecodeAsPillow) {
  const Pair pair = GetParam();
  // Decoders of JPEG may round differently; lossless files may not.
  const bool jpeg = std::string_view(pair.file).ends_with(".jpg");
  expect_equal(read_image(sample(pair.file)), read_image(sample(pair.expected)), jpeg ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Png, StoredPictures,
                         testing::Values(Pair{"palette.png", "palette_as_rgb.png"},
                                         Pair{"gray1.png", "gray1_as_gray.png"},
                                         Pair{"rgba.png", "rgba_as_rgb.png"},
                                         Pair{"gray_alpha.png", "gray_alpha_as_l.png"},
                                         Pair{"rgb16.png", "rgb16_as_rgb.png"},
                                         Pair{"interlaced.png", "interlaced_as_gray.png"}));
INSTANTIATE_TEST_SUITE_P(Jpeg, StoredPictures,
                         testing::Values(Pair{"gray.jpg", "gray_decoded.png"},
                                         Pair{"rgb420.jpg", "rgb420_decoded.png"},
                                         Pair{"rgb444.jpg", "rgb444_decoded.png"},
                                         Pair{"progressive.jpg", "progressive_decoded.png"},
                                         Pair{"cmyk.jpg", "cmyk_decoded.png"},
                                         Pair{"cmyk_plain.jpg", "cmyk_plain_decoded.png"}));

// The anchor of the comparisons above: pixels known without any decoder.
TEST(Image, FourBitGrayIsScaled) {
  const Image image = read_image(sample("gray4.png"));
  EXPECT_EQ(image.height, 2);
  EXPECT_EQ(image.width, 4);
  EXPECT_EQ(image.channels, 1);
  EXPECT_EQ(image.pixels, (std::vector<uint8_t>{0, 17, 34, 255, 170, 85, 119, 0}));
}

TEST(Image, TransparentColourBecomesBlack) {
  EXPECT_EQ(read_image(sample("gray8_transparent.png")).pixels, (std::vector<uint8_t>{10, 0, 30}));
}

TEST(Image, EncodeAndDecodeGiveTheSamePixels) {
  for (const int64_t channels : {1, 3}) {
    Image image{5, 7, channels, {}};
    for (int64_t i = 0; i < 5 * 7 * channels; ++i) image.pixels.push_back(i * 37 & 0xff);
    const Bytes png = encode_png(image);
    expect_equal(decode_image(png, "encoded"), image);
    EXPECT_EQ(encode_png(image), png);
  }
}

TEST(Image, EncodeRefusesWhatIsNoPicture) {
  const auto refused = [](const Image& image) {
    expect_error<InvalidArgument>([&] { encode_png(image); }, {"cannot encode"});
  };
  refused({});
  refused({2, 2, 2, std::vector<uint8_t>(8)});
  refused({2, 2, 3, std::vector<uint8_t>(11)});
  refused({-2, -2, 1, std::vector<uint8_t>(4)});
}

TEST(Image, ContentCountsNotTheName) {
  const TemporaryFolder folder;
  spill(folder / "really-a-jpeg.png", slurp(sample("gray.jpg")));
  expect_equal(read_image(folder / "really-a-jpeg.png"), read_image(sample("gray.jpg")));
}

TEST(Image, NotAPicture) {
  const TemporaryFolder folder;
  spill(folder / "text.png", "hello, world");
  expect_error<InvalidArgument>(
      [&] { read_image(folder / "text.png"); },
      {(folder / "text.png").string(), "begins with 68 65 6c 6c", "expected a PNG or JPEG"});
  spill(folder / "empty.jpg", "");
  expect_error<InvalidArgument>([&] { read_image(folder / "empty.jpg"); }, {"empty.jpg is empty"});
  expect_error<InvalidArgument>([&] { read_image(folder / "none.jpg"); },
                                {"none.jpg", "No such file"});
  expect_error<InvalidArgument>([&] { read_image(folder.path()); }, {"a folder"});
}

TEST(Image, EveryTruncationIsRefused) {
  for (const char* file : {"rgb8.png", "interlaced.png", "rgba.png"}) {
    const Bytes whole = read_file(sample(file), "test");
    for (std::size_t size = 0; size < whole.size(); ++size)
      expect_error<InvalidArgument>([&] { decode_image(ByteSpan(whole).first(size), "cut.png"); },
                                    {"image: cut.png"});
  }
  // A JPEG may lose its end marker and still be whole.
  for (const char* file : {"gray.jpg", "rgb420.jpg", "progressive.jpg", "cmyk.jpg"}) {
    const Bytes whole = read_file(sample(file), "test");
    for (std::size_t size = 0; size + 2 < whole.size(); ++size)
      expect_error<InvalidArgument>([&] { decode_image(ByteSpan(whole).first(size), "cut.jpg"); },
                                    {"image: cut.jpg"});
  }
}

TEST(Image, DamageInThePixelsIsRefused) {
  std::string png = slurp(sample("rgb8.png"));
  png[png.find("IDAT") + 20] ^= 0x55;
  expect_error<InvalidArgument>([&] { decode_image(as_byte_span(png), "bad.png"); },
                                {"image: bad.png is a damaged PNG"});
}

TEST(Image, LimitsAreNamed) {
  const ImageLimits side{.side = 16};
  expect_error<InvalidArgument>([&] { read_image(sample("rgb8.png"), side); },
                                {"rgb8.png has 13 x 17 pixels, expected at most 16 a side"});
  expect_error<InvalidArgument>([&] { read_image(sample("gray.jpg"), side); },
                                {"gray.jpg has 21 x 30 pixels, expected at most 16 a side"});
  const ImageLimits pixels{.pixels = 220};
  expect_error<InvalidArgument>([&] { read_image(sample("rgb8.png"), pixels); },
                                {"13 x 17 pixels, expected at most 220 in all"});
  expect_error<InvalidArgument>([&] { read_image(sample("rgb8.png"), {.file_bytes = 10}); },
                                {"bytes, expected at most 10"});
}

// A declared size is not believed before memory is taken: 12290 x 12292 in 71 bytes of PNG.
TEST(Image, HugePromisesInSmallFiles) {
  std::string png = slurp(sample("gray4.png"));
  constexpr std::size_t kHeader = 12, kHeaderSize = 17;  // type and body of the first chunk
  png[kHeader + 6] = png[kHeader + 10] = 0x30;           // width and height, upper bytes
  const uint32_t checksum =
      ::crc32(0, reinterpret_cast<const Bytef*>(png.data()) + kHeader, kHeaderSize);
  for (int i = 0; i < 4; ++i)
    png[kHeader + kHeaderSize + i] = static_cast<char>(checksum >> (24 - 8 * i));
  expect_error<InvalidArgument>([&] { decode_image(as_byte_span(png), "huge.png"); },
                                {"huge.png is a truncated PNG", "cannot hold 12290 x 12292"});
}

TEST(Image, HugeChunksInSmallFiles) {
  expect_error<InvalidArgument>(
      [] { read_image(sample("huge_chunk.png")); },
      {"huge_chunk.png is a truncated PNG: 45 bytes, expected at least 1903260062"});
}

// A progressive JPEG of one block, written by hand: all coefficients 0, so all pixels 128.
std::string jpeg_of_scans(int scans) {
  std::string file("\xff\xd8\xff\xdb\x00\x43\x00", 7);
  file += std::string(64, '\x01');                                                  // quantisation
  file += std::string("\xff\xc2\x00\x0b\x08\x00\x08\x00\x08\x01\x01\x11\x00", 13);  // 8 x 8
  file += std::string("\xff\xc4\x00\x14\x00\x01", 6) + std::string(16, '\0');       // one code
  for (int i = 0; i < scans; ++i)
    file += std::string("\xff\xda\x00\x08\x01\x01\x00\x00\x00\x00\x7f", 11);
  return file + "\xff\xd9";
}

TEST(Image, EndlessScansAreRefused) {
  const Image image = decode_image(as_byte_span(jpeg_of_scans(3)), "few.jpg");
  EXPECT_EQ(image.pixels, std::vector<uint8_t>(64, 128));
  expect_error<InvalidArgument>([&] { decode_image(as_byte_span(jpeg_of_scans(600)), "many.jpg"); },
                                {"many.jpg", "more than 500 scans"});
}

TEST(Image, JpegOfTwoChannelsIsRefused) {
  const std::string file(
      "\xff\xd8\xff\xc0\x00\x0e\x08\x00\x08\x00\x08\x02\x01\x11\x00\x02\x11\x00"
      "\xff\xda\x00\x0a\x02\x01\x00\x02\x00\x00\x3f\x00",
      30);
  expect_error<InvalidArgument>([&] { decode_image(as_byte_span(file), "two.jpg"); },
                                {"two.jpg", "neither 1, 3 nor 4"});
}

}  // namespace
}  // namespace linescan::test
