#include "linescan/files/idx.h"

#include "linescan/files/sha256.h"
#include "tests/files/packed.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

IdxArray parse(const std::string& file, const IdxReading& reading = {}) {
  return parse_idx(as_byte_span(file), "x-ubyte", reading);
}

TEST(Idx, ReadsPlainAndPacked) {
  for (const char* name : {"images.idx", "images.idx.gz"}) {
    const IdxArray array = read_idx(sample(name), {.with_sha256 = true});
    EXPECT_EQ(array.sizes, (std::vector<int64_t>{2, 3, 4}));
    ASSERT_EQ(array.data.size(), 24u);
    for (int i = 0; i < 24; ++i) EXPECT_EQ(array.data[i], i);
    EXPECT_EQ(array.sha256, sha256_hex(as_byte_span(slurp(sample("images.idx")))));
  }
  EXPECT_EQ(read_idx(sample("images.idx")).sha256, "");
}

TEST(Idx, OneToFourDimensionsAndNoElements) {
  EXPECT_EQ(parse(idx_file({3}, "abc")).sizes, (std::vector<int64_t>{3}));
  EXPECT_EQ(parse(idx_file({1, 1, 1, 2}, "ab")).data, (std::vector<uint8_t>{'a', 'b'}));
  EXPECT_TRUE(parse(idx_file({0, 28, 28}, "")).data.empty());
}

TEST(Idx, WrongMagic) {
  for (const char* begin : {"\x01\x00\x08\x01", "\x00\x01\x08\x01", "\x00\x00\x08\x05"})
    expect_error<InvalidArgument>([&] { parse(std::string(begin, 4) + "0123"); },
                                  {"idx: x-ubyte begins with", "expected 000008"});
  expect_error<InvalidArgument>([&] { parse(std::string("\0\0\x08\0", 4)); }, {"00000800"});
  expect_error<InvalidArgument>([&] { parse(std::string("\0\0\x0d\1", 4)); },
                                {"00000d01", "unsigned bytes"});
}

TEST(Idx, EveryTruncationIsRefusedWithCounts) {
  const std::string file = idx_file({2, 3, 4}, std::string(24, 'x'));
  for (std::size_t size = 0; size < file.size(); ++size)
    expect_error<InvalidArgument>([&] { parse(file.substr(0, size)); },
                                  {"x-ubyte has " + std::to_string(size) + " bytes"});
  expect_error<InvalidArgument>([&] { parse(file.substr(0, 39)); },
                                {"has 39 bytes, expected 40 = 16 + 2 x 3 x 4 (truncated)"});
  expect_error<InvalidArgument>([&] { parse(gzip(file.substr(0, 39))); },
                                {"has 39 bytes, expected 40"});
}

TEST(Idx, TrailingBytesAreRefused) {
  const std::string file = idx_file({3}, "abcd");
  expect_error<InvalidArgument>([&] { parse(file); },
                                {"has 12 bytes, expected 11 = 8 + 3 (trailing bytes)"});
}

TEST(Idx, SizesWhoseProductOverflows) {
  expect_error<InvalidArgument>(
      [&] {
        parse(idx_file({0xffffffff, 0xffffffff, 0xffffffff}, "abc"));
      },
      {"4294967295 x 4294967295 x 4294967295"});
}

TEST(Idx, BoundHoldsForPlainAndPacked) {
  const std::string file = idx_file({100}, std::string(100, 'x'));
  EXPECT_EQ(parse(file, {.longest = 108}).data.size(), 100u);
  EXPECT_EQ(parse(gzip(file), {.longest = 108}).data.size(), 100u);
  expect_error<InvalidArgument>([&] { parse(file, {.longest = 107}); },
                                {"has 108 bytes, expected at most 107"});
  expect_error<InvalidArgument>([&] { parse(gzip(file), {.longest = 107}); },
                                {"more than 107 bytes"});
}

TEST(Idx, MissingFileIsNamed) {
  expect_error<InvalidArgument>([&] { read_idx("/nonexistent/x-ubyte"); },
                                {"idx: cannot read /nonexistent/x-ubyte", "No such file"});
}

}  // namespace
}  // namespace linescan::test
