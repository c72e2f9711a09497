#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "linescan/base/error.h"
#include "linescan/base/math.h"
#include "linescan/files/atomic_write.h"
#include "linescan/files/quote_text.h"
#include "linescan/files/safetensors.h"
#include "linescan/files/safetensors_dtype.h"

namespace linescan {
namespace {

constexpr std::size_t kPrefix = 8;  // bytes of the header's length
constexpr int64_t kAlignment = 8;   // of the data in the file: the largest element

std::string json_string(const std::string& text, const std::string& file) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::type_error&) {
    throw_error<InvalidArgument>("safetensors: {}: {} is not UTF-8", file, quote_text(text));
  }
}

void check(const SafetensorsTensor& tensor, const std::string& file) {
  const std::string who = fmt::format("safetensors: {}: tensor {}", file, quote_text(tensor.name));
  if (tensor.name == "__metadata__")
    throw_error<InvalidArgument>("{} has the format's reserved name, expected another", who);
  const int64_t bytes = safetensors_byte_size(who, tensor.dtype, tensor.shape);
  if (static_cast<int64_t>(tensor.size) != bytes)
    throw_error<InvalidArgument>("{} has {} bytes, expected {} for {}", who, tensor.size, bytes,
                                 safetensors_type_text(tensor.dtype, tensor.shape));
}

std::vector<const SafetensorsTensor*> order(std::span<const SafetensorsTensor> tensors,
                                            const std::string& file) {
  std::vector<const SafetensorsTensor*> sorted;
  for (const SafetensorsTensor& tensor : tensors) {
    check(tensor, file);
    sorted.push_back(&tensor);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::tuple(-safetensors_element_size(a->dtype), std::string_view(a->name)) <
           std::tuple(-safetensors_element_size(b->dtype), std::string_view(b->name));
  });
  std::vector<std::string_view> names;
  for (const SafetensorsTensor* tensor : sorted) names.push_back(tensor->name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    throw_error<InvalidArgument>("safetensors: {}: tensor {} is given twice", file,
                                 quote_text(*twice));
  return sorted;
}

std::string header_of(const std::vector<const SafetensorsTensor*>& tensors,
                      const SafetensorsMetadata& metadata, const std::string& file) {
  std::vector<std::string> items;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, text] : metadata)
      pairs.push_back(json_string(key, file) + ":" + json_string(text, file));
    items.push_back(fmt::format("\"__metadata__\":{{{}}}", fmt::join(pairs, ",")));
  }
  std::size_t offset = 0;
  for (const SafetensorsTensor* tensor : tensors) {
    items.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                json_string(tensor->name, file), tensor->dtype,
                                fmt::join(tensor->shape, ","), offset, offset + tensor->size));
    offset += tensor->size;
  }
  std::string header = fmt::format("{{{}}}", fmt::join(items, ","));
  header.resize(round_up(static_cast<int64_t>(header.size()), kAlignment), ' ');
  return header;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path,
                       std::span<const SafetensorsTensor> tensors,
                       const SafetensorsMetadata& metadata) {
  const auto sorted = order(tensors, path.string());
  const std::string header = header_of(sorted, metadata, path.string());
  std::string prefix;
  for (std::size_t i = 0; i < kPrefix; ++i)
    prefix += static_cast<char>(uint64_t{header.size()} >> (8 * i) & 0xff);
  std::vector<ByteSpan> parts = {as_byte_span(prefix), as_byte_span(header)};
  for (const SafetensorsTensor* tensor : sorted) parts.emplace_back(tensor->data, tensor->size);
  write_file_atomically(path, parts);
}

}  // namespace linescan
