#include "linescan/files/gzip.h"

#include "tests/files/packed.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

constexpr int64_t kPlenty = 1 << 24;

std::string unpack(const std::string& packed, int64_t longest = kPlenty) {
  return std::string(as_text(gunzip(as_byte_span(packed), "file.gz", longest)));
}

TEST(Gzip, UnpacksOneAndSeveralMembers) {
  EXPECT_EQ(unpack(gzip("hello")), "hello");
  EXPECT_EQ(unpack(gzip("")), "");
  EXPECT_EQ(unpack(gzip("one ") + gzip("") + gzip("two")), "one two");
  std::string large;
  for (uint32_t i = 0; i < 3000000; ++i) large += static_cast<char>(i * i >> 5);
  EXPECT_TRUE(unpack(gzip(large)) == large);
}

TEST(Gzip, EveryTruncationIsRefused) {
  const std::string packed = gzip("some text to be packed");
  for (std::size_t size = 2; size < packed.size(); ++size)
    expect_error<InvalidArgument>([&] { unpack(packed.substr(0, size)); },
                                  {"file.gz is truncated", std::to_string(size) + " bytes"});
}

TEST(Gzip, DamageIsRefused) {
  const std::string packed = gzip("some text to be packed");
  std::string wrong = packed;
  wrong[wrong.size() - 6] ^= 1;  // the checksum
  expect_error<InvalidArgument>([&] { unpack(wrong); }, {"file.gz is corrupt", "data check"});
  wrong = packed;
  wrong[2] = 9;  // the method
  expect_error<InvalidArgument>([&] { unpack(wrong); }, {"corrupt", "method"});
  expect_error<InvalidArgument>([&] { unpack(packed + "rest"); }, {"file.gz has 4 bytes behind"});
}

TEST(Gzip, ContentIsBounded) {
  const std::string packed = gzip(std::string(5000, 'x'));
  EXPECT_EQ(unpack(packed, 5000).size(), 5000u);
  expect_error<InvalidArgument>([&] { unpack(packed, 4999); },
                                {"file.gz unpacks to more than 4999 bytes"});
  const std::string bomb = gzip(std::string(50 << 20, '\0'));
  EXPECT_LT(bomb.size(), std::size_t{1} << 17);
  expect_error<InvalidArgument>([&] { unpack(bomb); }, {"more than 16777216 bytes"});
}

}  // namespace
}  // namespace linescan::test
