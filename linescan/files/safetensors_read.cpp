#include <algorithm>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"
#include "linescan/files/quote_text.h"
#include "linescan/files/read_file.h"
#include "linescan/files/safetensors.h"
#include "linescan/files/safetensors_header.h"

namespace linescan {
namespace {

constexpr uint64_t kPrefix = 8;  // bytes of the header's length

uint64_t little_endian(ByteSpan bytes) {
  uint64_t value = 0;
  for (std::size_t i = 0; i < kPrefix; ++i) value |= uint64_t{as_uint8(bytes)[i]} << (8 * i);
  return value;
}

// The tensors, in the order of their data, must lie end to end and fill the data exactly.
void check_layout(const SafetensorsHeader& header, int64_t data_size, const std::string& file) {
  using Named = std::pair<const std::string, SafetensorsHeader::Tensor>;
  std::vector<const Named*> order;
  for (const Named& tensor : header.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const Named* a, const Named* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t covered = 0;
  for (const Named* named : order) {
    const auto& [name, tensor] = *named;
    if (tensor.begin != covered)
      throw_error<InvalidArgument>(
          "safetensors: {}: tensor {} begins at byte {} of the data, expected {} ({})", file,
          quote_text(name), tensor.begin, covered, tensor.begin < covered ? "overlap" : "hole");
    if (tensor.end > data_size)
      throw_error<InvalidArgument>(
          "safetensors: {}: tensor {} ends at byte {} of the data, but the file has {} (truncated)",
          file, quote_text(name), tensor.end, data_size);
    covered = tensor.end;
  }
  if (covered != data_size)
    throw_error<InvalidArgument>(
        "safetensors: {}: data have {} bytes, expected {} (trailing bytes)", file, data_size,
        covered);
}

}  // namespace

SafetensorsFile SafetensorsFile::parse(Bytes bytes, const std::string& name) {
  if (bytes.size() < kPrefix)
    throw_error<InvalidArgument>("safetensors: {} has {} bytes, expected at least {}", name,
                                 bytes.size(), kPrefix);
  const uint64_t header_size = little_endian(bytes);
  if (header_size > bytes.size() - kPrefix)
    throw_error<InvalidArgument>(
        "safetensors: {} has {} bytes, expected at least {} + a header of {} (truncated, or not "
        "safetensors)",
        name, bytes.size(), kPrefix, header_size);

  SafetensorsFile file;
  file.name_ = name;
  file.bytes_ = std::move(bytes);
  const ByteSpan all(file.bytes_);
  const ByteSpan data = all.subspan(kPrefix + header_size);
  SafetensorsHeader header =
      parse_safetensors_header(as_text(all.subspan(kPrefix, header_size)), name);
  check_layout(header, static_cast<int64_t>(data.size()), name);
  file.metadata_ = std::move(header.metadata);
  for (auto& [tensor_name, tensor] : header.tensors)
    file.entries_[tensor_name] = {std::move(tensor.dtype), std::move(tensor.shape),
                                  data.data() + tensor.begin,
                                  static_cast<std::size_t>(tensor.end - tensor.begin)};
  return file;
}

SafetensorsFile SafetensorsFile::read(const std::filesystem::path& path) {
  return parse(read_file(path, "safetensors"), path.string());
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

const SafetensorsEntry& SafetensorsFile::at(std::string_view name) const {
  if (const SafetensorsEntry* entry = find(name)) return *entry;
  throw_error<InvalidArgument>("safetensors: {}: {}", name_, unknown_name("tensor", name, names()));
}

}  // namespace linescan
