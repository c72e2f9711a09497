#include "linescan/files/safetensors.h"
#include "tests/files/support.h"

namespace linescan::test {
namespace {

const std::string kData(64, '\x11');

SafetensorsTensor tensor(const std::string& name, const std::string& dtype,
                         std::vector<int64_t> shape, std::size_t size) {
  return {name, dtype, std::move(shape), as_byte_span(kData).data(), size};
}

TEST(SafetensorsWrite, ReadsBackEqual) {
  const TemporaryFolder folder;
  const std::vector<SafetensorsTensor> tensors = {tensor("a", "U8", {3}, 3),
                                                  tensor("layers.0.weight", "F32", {2, 2}, 16),
                                                  tensor("scalar", "F64", {}, 8),
                                                  {"empty", "BF16", {4, 0}, nullptr, 0},
                                                  tensor("quo\"te\n", "I16", {1}, 2)};
  const SafetensorsMetadata metadata = {{"version", "1"}, {"name", "caf\u00e9"}};
  write_safetensors(folder / "x", tensors, metadata);
  const SafetensorsFile file = SafetensorsFile::read(folder / "x");
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const SafetensorsTensor& expected : tensors) {
    const SafetensorsEntry& got = file.at(expected.name);
    EXPECT_EQ(got.dtype, expected.dtype);
    EXPECT_EQ(got.shape, expected.shape);
    EXPECT_EQ(as_text({got.data, got.size}), as_text({expected.data, expected.size}));
  }
}

TEST(SafetensorsWrite, BytesAreAsTheFormatSays) {
  const TemporaryFolder folder;
  const std::vector<SafetensorsTensor> tensors = {tensor("b", "U8", {2}, 2),
                                                  tensor("a", "U8", {1}, 1)};
  write_safetensors(folder / "x", tensors);
  const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(slurp(folder / "x"), std::string(1, static_cast<char>(padded.size())) +
                                     std::string(7, '\0') + padded + "\x11\x11\x11");
}

TEST(SafetensorsWrite, OrderGivenDoesNotMatterAndDataAreAligned) {
  const TemporaryFolder folder;
  std::vector<SafetensorsTensor> tensors = {tensor("z", "F64", {1}, 8), tensor("m", "F32", {3}, 12),
                                            tensor("a", "BOOL", {1}, 1), tensor("k", "F16", {1}, 2),
                                            tensor("y", "I64", {1}, 8)};
  write_safetensors(folder / "one", tensors);
  std::swap(tensors[0], tensors[4]);
  std::swap(tensors[1], tensors[2]);
  write_safetensors(folder / "two", tensors);
  EXPECT_EQ(slurp(folder / "one"), slurp(folder / "two"));
  const SafetensorsFile file = SafetensorsFile::read(folder / "one");
  for (const auto& [name, entry] : file.entries())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.data) % safetensors_element_size(entry.dtype), 0u)
        << name;
}

TEST(SafetensorsWrite, NothingAtAll) {
  const TemporaryFolder folder;
  write_safetensors(folder / "x", {});
  EXPECT_TRUE(SafetensorsFile::read(folder / "x").names().empty());
  EXPECT_EQ(slurp(folder / "x").size(), 16u);
}

TEST(SafetensorsWrite, RefusesWhatCannotBeReadBack) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<SafetensorsTensor>& tensors,
                           std::initializer_list<std::string> parts) {
    expect_error<InvalidArgument>([&] { write_safetensors(folder / "x", tensors); }, parts);
    EXPECT_FALSE(std::filesystem::exists(folder / "x"));
  };
  refused({tensor("w", "F32", {2}, 4)}, {"tensor \"w\" has 4 bytes, expected 8 for F32 [2]"});
  refused({tensor("w", "F33", {2}, 8)}, {"has type \"F33\""});
  refused({tensor("w", "F32", {-2}, 8)}, {"shape [-2]"});
  refused({tensor("w", "U8", std::vector<int64_t>(33, 1), 1)}, {"33 dimensions"});
  refused({tensor("w", "U8", {1}, 1), tensor("w", "F32", {1}, 4)}, {"tensor \"w\" is given twice"});
  refused({tensor("__metadata__", "U8", {1}, 1)}, {"reserved name"});
  refused({tensor("\xff", "U8", {1}, 1)}, {"is not UTF-8"});
  expect_error<InvalidArgument>(
      [&] {
        write_safetensors(folder / "x", {}, {{"a", "\xff"}});
      },
      {"is not UTF-8"});
}

TEST(SafetensorsWrite, FailedWritesAreIoErrors) {
  const TemporaryFolder folder;
  expect_error<IoError>([&] { write_safetensors(folder / "none" / "x", {}); },
                        {(folder / "none" / "x").string(), "No such file"});
}

}  // namespace
}  // namespace linescan::test
