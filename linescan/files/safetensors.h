// The safetensors format, without Torch: named tensors in one file.
//
//   8 bytes   length of the header, little-endian
//   header    JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
//             "__metadata__": {"key": "text"}}, spaces behind it up to a multiple of 8
//   data      the tensors one after the other, row-major, little-endian
//
// The reader trusts nothing: see SafetensorsFile. Types: F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linescan/files/bytes.h"

namespace linescan {

// Bytes of one element, 0 for a type that is not in the list above.
int64_t safetensors_element_size(std::string_view dtype);

using SafetensorsMetadata = std::map<std::string, std::string>;

// A tensor inside a SafetensorsFile, valid as long as that lives.
struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;       // empty for a scalar
  const std::byte* data = nullptr;  // may be misaligned for its type in files of others: memcpy
  std::size_t size = 0;             // bytes
};

// A file that has been read and checked as a whole: header length against file size, JSON, no name
// twice, known types, sizes that are not negative and whose product fits, offsets that agree with
// type and shape and cover the data without hole, overlap or rest. What fails is an InvalidArgument
// naming file, tensor, what was got and what was expected.
class SafetensorsFile {
 public:
  static SafetensorsFile read(const std::filesystem::path& path);

  // The same from memory; `name` is what messages call it.
  static SafetensorsFile parse(Bytes bytes, const std::string& name);

  SafetensorsFile(SafetensorsFile&&) = default;
  SafetensorsFile& operator=(SafetensorsFile&&) = default;

  std::vector<std::string> names() const;  // sorted
  const std::map<std::string, SafetensorsEntry, std::less<>>& entries() const { return entries_; }
  const SafetensorsMetadata& metadata() const { return metadata_; }

  // Null if there is no such tensor.
  const SafetensorsEntry* find(std::string_view name) const;

  // Throws InvalidArgument naming the file and the nearest name if there is no such tensor.
  const SafetensorsEntry& at(std::string_view name) const;

 private:
  SafetensorsFile() = default;

  std::string name_;
  Bytes bytes_;
  std::map<std::string, SafetensorsEntry, std::less<>> entries_;
  SafetensorsMetadata metadata_;
};

// A tensor to be written; owns nothing.
struct SafetensorsTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  std::size_t size = 0;  // bytes
};

// Writes the file atomically (atomic_write.h). The bytes depend on the set of tensors and metadata
// alone: tensors are sorted by element size, largest first, which keeps each aligned, then by name.
// Throws InvalidArgument (unknown type, negative or too large shape, a size that does not fit the
// shape, a name twice, the name "__metadata__", text that is not UTF-8) and IoError.
void write_safetensors(const std::filesystem::path& path,
                       std::span<const SafetensorsTensor> tensors,
                       const SafetensorsMetadata& metadata = {});

}  // namespace linescan
