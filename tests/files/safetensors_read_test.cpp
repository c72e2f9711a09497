#include <cstring>

#include "linescan/files/safetensors.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

// A file of this header and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data_size) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(uint64_t{header.size()} >> (8 * i) & 0xff);
  return file + header + std::string(data_size, '\x2a');
}

SafetensorsFile parse(const std::string& file) {
  return SafetensorsFile::parse(to_bytes(file), "x.safetensors");
}

void expect_refused(const std::string& header, std::size_t data_size,
                    std::initializer_list<std::string> parts) {
  expect_error<InvalidArgument>([&] { parse(file_of(header, data_size)); }, parts);
}

// One tensor "w" described by `fields`.
std::string header_of(const std::string& fields) { return "{\"w\":{" + fields + "}}"; }

template <typename T>
std::vector<T> values(const SafetensorsEntry& entry) {
  std::vector<T> result(entry.size / sizeof(T));
  std::memcpy(result.data(), entry.data, entry.size);
  return result;
}

TEST(SafetensorsRead, FileOfTheOfficialLibrary) {
  const SafetensorsFile file = SafetensorsFile::read(sample("official.safetensors"));
  EXPECT_EQ(file.names(), (std::vector<std::string>{"count", "empty", "half", "mask", "weight"}));
  const SafetensorsEntry& weight = file.at("weight");
  EXPECT_EQ(weight.dtype, "F32");
  EXPECT_EQ(weight.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(values<float>(weight), (std::vector<float>{0, 0.25, 0.5, 0.75, 1, 1.25}));
  EXPECT_EQ(file.at("count").shape.size(), 0u);
  EXPECT_EQ(values<int64_t>(file.at("count")), std::vector<int64_t>{-5});
  EXPECT_EQ(values<uint16_t>(file.at("half")), (std::vector<uint16_t>{0x3e00, 0xc000}));
  EXPECT_EQ(values<uint8_t>(file.at("mask")), (std::vector<uint8_t>{1, 0, 1}));
  EXPECT_EQ(file.at("empty").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(file.at("empty").size, 0u);
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "np"}, {"name", "caf\u00e9"}}));
}

TEST(SafetensorsRead, MovedFilesKeepTheirData) {
  SafetensorsFile first = SafetensorsFile::read(sample("official.safetensors"));
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(values<float>(second.at("weight"))[5], 1.25f);
}

TEST(SafetensorsRead, UnknownNames) {
  const SafetensorsFile file = SafetensorsFile::read(sample("official.safetensors"));
  EXPECT_EQ(file.find("wieght"), nullptr);
  expect_error<InvalidArgument>([&] { file.at("wieght"); },
                                {"official.safetensors", "unknown tensor 'wieght'", "'weight'"});
}

TEST(SafetensorsRead, EveryTypeAndEmptyFiles) {
  for (const auto& [type, size] : {std::pair{"F64", 8},
                                   {"F32", 4},
                                   {"F16", 2},
                                   {"BF16", 2},
                                   {"I64", 8},
                                   {"I32", 4},
                                   {"I16", 2},
                                   {"I8", 1},
                                   {"U8", 1},
                                   {"BOOL", 1}}) {
    const std::string header =
        header_of(fmt::format(R"("dtype":"{}","shape":[3],"data_offsets":[0,{}])", type, 3 * size));
    EXPECT_EQ(parse(file_of(header, 3 * size)).at("w").size, 3u * size) << type;
    EXPECT_EQ(safetensors_element_size(type), size) << type;
  }
  EXPECT_TRUE(parse(file_of("{}", 0)).names().empty());
  EXPECT_TRUE(parse(file_of("{}      ", 0)).names().empty());
}

TEST(SafetensorsRead, EveryTruncationIsRefused) {
  const std::string whole = slurp(sample("official.safetensors"));
  for (std::size_t size = 0; size < whole.size(); ++size)
    expect_error<InvalidArgument>([&] { parse(whole.substr(0, size)); },
                                  {"safetensors: x.safetensors"});
  expect_error<InvalidArgument>([&] { parse("1234567"); }, {"has 7 bytes, expected at least 8"});
  expect_error<InvalidArgument>([&] { parse(whole.substr(0, whole.size() - 1)); },
                                {"tensor \"mask\"", "(truncated)"});
}

TEST(SafetensorsRead, HeaderLengthIsCheckedAgainstTheFile) {
  expect_error<InvalidArgument>([&] { parse("\x03" + std::string(7, '\0') + "{}"); },
                                {"has 10 bytes, expected at least 8 + a header of 3"});
  expect_error<InvalidArgument>([&] { parse(std::string(16, '\xff')); },
                                {"a header of 18446744073709551615"});
}

TEST(SafetensorsRead, HeaderMustBeJson) {
  expect_refused("", 0, {"header is not JSON"});
  expect_refused("[]", 0, {"expected '{' first"});
  expect_refused(" {}", 0, {"expected '{' first"});
  expect_refused(std::string("{}\0\0", 4), 0, {"no zero byte"});
  expect_refused("{\"w\":", 0, {"header of 5 bytes is not JSON at byte"});
  expect_refused("{} x", 0, {"is not JSON at byte 4"});
  expect_refused("{\"w\xff\":1}", 0, {"is not JSON at byte"});
  expect_refused("{\"w\":1e999}", 0, {"a number that is out of range"});
  expect_refused("{\"w\":[[[[1]]]]}", 0, {"nested deeper than 3"});
  expect_refused("{\"w\":" + std::string(100000, '['), 0, {"nested deeper than 3"});
}

TEST(SafetensorsRead, DuplicateNamesAreRefused) {
  const std::string tensor = R"({"dtype":"U8","shape":[],"data_offsets":[0,1]})";
  expect_refused("{\"w\":" + tensor + ",\"w\":" + tensor + "}", 1, {"key \"w\" twice"});
  expect_refused(header_of(R"("dtype":"U8","dtype":"I8","shape":[],"data_offsets":[0,1])"), 1,
                 {"key \"dtype\" twice"});
}

TEST(SafetensorsRead, DescriptionsMustBeWhole) {
  for (const char* fields :
       {R"("dtype":"U8","shape":[1])", R"("dtype":"U8","data_offsets":[0,1])",
        R"("shape":[1],"data_offsets":[0,1])", R"("dtype":7,"shape":[1],"data_offsets":[0,1])",
        R"("dtype":"U8","shape":[1],"data_offsets":[0,1],"more":0)"})
    expect_refused(header_of(fields), 1, {"tensor \"w\" is described wrongly"});
  expect_refused("{\"w\":5}", 0, {"tensor \"w\" is described wrongly"});
}

TEST(SafetensorsRead, TypesMustBeKnown) {
  expect_refused(header_of(R"("dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1])"), 1,
                 {"tensor \"w\" has type \"F8_E4M3\"", "F64 F32 F16 BF16 I64"});
}

TEST(SafetensorsRead, ShapesMustBeSizes) {
  const auto refused = [](const std::string& shape, std::initializer_list<std::string> parts) {
    expect_refused(header_of(R"("dtype":"F32","data_offsets":[0,4],"shape":)" + shape), 4, parts);
  };
  refused("[-1]", {"tensor \"w\" has shape [-1], expected sizes of 0 or more"});
  refused("[0,-1]", {"has shape [0, -1]"});
  refused("[4294967296,4294967296]", {"[4294967296, 4294967296], expected less than 2^63 bytes"});
  refused("[2305843009213693952]", {"expected less than 2^63 bytes"});
  for (const char* shape : {"[1.0]", "[\"1\"]", "1", "{}", "[true]", "[18446744073709551615]",
                            "[99999999999999999999]"})
    refused(shape, {"tensor \"w\" has a shape that is not a list of 64-bit integers"});
  std::string many = "[1";
  for (int i = 0; i < 32; ++i) many += ",1";
  refused(many + "]", {"has 33 dimensions, expected at most 32"});
}

TEST(SafetensorsRead, HugeButEmptyShapes) {
  const std::string header =
      header_of(R"("dtype":"F64","shape":[9223372036854775807,2,0],"data_offsets":[0,0])");
  EXPECT_EQ(parse(file_of(header, 0)).at("w").size, 0u);
}

TEST(SafetensorsRead, OffsetsMustFitTypeAndShape) {
  const auto refused = [](const std::string& offsets, std::initializer_list<std::string> parts) {
    expect_refused(header_of(R"("dtype":"F32","shape":[2],"data_offsets":)" + offsets), 8, parts);
  };
  refused("[0,4]", {"tensor \"w\" has data_offsets [0, 4] = 4 bytes, expected 8 for F32 [2]"});
  refused("[8,0]", {"[8, 0], expected 0 <= begin <= end"});
  refused("[-8,0]", {"[-8, 0], expected 0 <= begin <= end"});
  refused("[0]", {"has 1 data_offsets, expected 2"});
  refused("[0,8,8]", {"has 3 data_offsets"});
  refused("[0,8.0]", {"data_offsets that is not a list of 64-bit integers"});
  refused("[8,16]", {"tensor \"w\" begins at byte 8 of the data, expected 0 (hole)"});
}

TEST(SafetensorsRead, TensorsMustCoverTheData) {
  const auto two = [](int a, int b, int c, int d) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                       R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                       b - a, a, b, d - c, c, d);
  };
  EXPECT_EQ(parse(file_of(two(0, 4, 4, 8), 8)).names().size(), 2u);
  EXPECT_EQ(parse(file_of(two(4, 8, 0, 4), 8)).names().size(), 2u);
  EXPECT_EQ(parse(file_of(two(0, 4, 4, 4), 4)).names().size(), 2u);
  expect_refused(two(0, 4, 5, 8), 8, {"\"b\" begins at byte 5", "expected 4 (hole)"});
  expect_refused(two(0, 4, 3, 8), 8, {"\"b\" begins at byte 3", "expected 4 (overlap)"});
  expect_refused(two(0, 4, 0, 4), 4, {"begins at byte 0", "expected 4 (overlap)"});
  expect_refused(two(0, 4, 4, 9), 8, {"\"b\" ends at byte 9", "the file has 8 (truncated)"});
  expect_refused(two(0, 4, 4, 8), 9, {"data have 9 bytes, expected 8 (trailing bytes)"});
}

TEST(SafetensorsRead, MetadataIsTextOnly) {
  EXPECT_EQ(parse(file_of(R"({"__metadata__":{"a":"b"}})", 0)).metadata().at("a"), "b");
  expect_refused(R"({"__metadata__":{"a":1}})", 0, {"__metadata__ \"a\" is number"});
  expect_refused(R"({"__metadata__":["a"]})", 0, {"__metadata__ is array, expected an object"});
}

TEST(SafetensorsRead, HostileNamesStayOnOneLine) {
  expect_refused(R"({"a\nb\u001b[31m":{"dtype":"U8","shape":[2],"data_offsets":[0,1]}})", 1,
                 {R"(tensor "a\nb\u001b[31m")"});
}

TEST(SafetensorsRead, MissingFileIsNamed) {
  expect_error<InvalidArgument>([&] { SafetensorsFile::read("/nonexistent/w.safetensors"); },
                                {"/nonexistent/w.safetensors", "No such file"});
}

}  // namespace
}  // namespace linescan::test
