#include "linescan/train/tensorboard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "linescan/base/error.h"

namespace linescan {
namespace {

class TensorBoard : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "linescan-tb-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename T>
T take(std::string_view* bytes) {
  T value{};
  EXPECT_GE(bytes->size(), sizeof(T));
  if (bytes->size() < sizeof(T)) return value;
  std::memcpy(&value, bytes->data(), sizeof(T));
  bytes->remove_prefix(sizeof(T));
  return value;
}

uint64_t take_varint(std::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

// A protobuf message as field number -> raw values, in order; a reader that shares no code with
// the writer.
std::multimap<uint64_t, std::string> parse_message(std::string_view bytes) {
  std::multimap<uint64_t, std::string> fields;
  while (!bytes.empty()) {
    const uint64_t key = take_varint(&bytes);
    std::size_t size = 0;
    std::string value;
    switch (key & 7) {
      case 0:
        value = std::to_string(static_cast<int64_t>(take_varint(&bytes)));
        break;
      case 1:
        size = 8;
        break;
      case 2:
        size = take_varint(&bytes);
        break;
      case 5:
        size = 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
        return fields;
    }
    if (size > bytes.size()) {
      ADD_FAILURE() << "field of " << size << " bytes, " << bytes.size() << " left";
      return fields;
    }
    if ((key & 7) != 0) value = bytes.substr(0, size);
    bytes.remove_prefix(size);
    fields.emplace(key >> 3, value);
  }
  return fields;
}

// Payloads of a TFRecord file; both checksums of each record are verified.
std::vector<std::string> read_records(const std::filesystem::path& path) {
  const std::string content = read_bytes(path);
  std::string_view rest = content;
  std::vector<std::string> payloads;
  while (!rest.empty()) {
    const std::string_view header = rest.substr(0, 8);
    const auto size = take<uint64_t>(&rest);
    EXPECT_EQ(take<uint32_t>(&rest), masked_crc32c(header));
    payloads.emplace_back(rest.substr(0, size));
    rest.remove_prefix(std::min<std::size_t>(size, rest.size()));
    EXPECT_EQ(take<uint32_t>(&rest), masked_crc32c(payloads.back()));
  }
  return payloads;
}

template <typename T>
T as(const std::string& bytes) {
  std::string_view view = bytes;
  return take<T>(&view);
}

TEST(Crc32c, MatchesPublishedValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST_F(TensorBoard, FirstRecordNamesTheVersion) {
  const EventWriter writer(folder_, 1700000000.25);
  EXPECT_EQ(writer.path().filename().string().rfind("events.out.tfevents.1700000000.", 0), 0u);
  const auto records = read_records(writer.path());
  ASSERT_EQ(records.size(), 1u);
  const auto event = parse_message(records[0]);
  EXPECT_EQ(as<double>(event.find(1)->second), 1700000000.25);
  EXPECT_EQ(event.find(3)->second, "brain.Event:2");
}

TEST_F(TensorBoard, ScalarsComeBack) {
  EventWriter writer(folder_, 1700000000);
  const Scalar scalars[] = {{"train/loss", 0.4375}, {"train/accuracy", 0.875}};
  writer.add_scalars(300, scalars, 1700000012.5);
  const std::string long_tag(200, 'x');  // its length takes two bytes
  const Scalar unknown[] = {{long_tag, std::nan("")}};
  writer.add_scalars(int64_t{1} << 40, unknown, 1700000013);

  const auto records = read_records(writer.path());
  ASSERT_EQ(records.size(), 3u);
  const auto event = parse_message(records[1]);
  EXPECT_EQ(as<double>(event.find(1)->second), 1700000012.5);
  EXPECT_EQ(event.find(2)->second, "300");
  const auto summary = parse_message(event.find(5)->second);
  ASSERT_EQ(summary.count(1), 2u);
  auto value = summary.find(1);
  for (const Scalar& expected : scalars) {
    const auto fields = parse_message((value++)->second);
    EXPECT_EQ(fields.find(1)->second, expected.tag);
    EXPECT_EQ(as<float>(fields.find(2)->second), static_cast<float>(expected.value));
  }
  const auto late = parse_message(records[2]);
  EXPECT_EQ(late.find(2)->second, std::to_string(int64_t{1} << 40));
  const auto fields = parse_message(parse_message(late.find(5)->second).find(1)->second);
  EXPECT_EQ(fields.find(1)->second, long_tag);
  EXPECT_TRUE(std::isnan(as<float>(fields.find(2)->second)));
}

TEST_F(TensorBoard, SessionsOfOneSecondGetFilesOfTheirOwn) {
  const EventWriter first(folder_, 1700000000);
  const EventWriter second(folder_, 1700000000);
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(read_records(first.path()).size(), 1u);
  EXPECT_EQ(read_records(second.path()).size(), 1u);
}

TEST_F(TensorBoard, MissingFolderIsNamed) {
  try {
    EventWriter writer(folder_ / "missing", 1700000000);
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("missing"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("No such file"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace linescan
