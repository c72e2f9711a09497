#include "linescan/files/safetensors_header.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "linescan/base/error.h"
#include "linescan/files/quote_text.h"
#include "linescan/files/safetensors_dtype.h"

namespace linescan {
namespace {

using nlohmann::json;

// The parser keeps the last of two equal keys, so they are noticed while it runs.
class KeyGuard {
 public:
  explicit KeyGuard(const std::string& file) : file_(file) {}

  bool operator()(int /*depth*/, json::parse_event_t event, json& parsed) {
    constexpr std::size_t kDeepest = 3;  // header, tensor, shape
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      open_.emplace_back();
      if (open_.size() > kDeepest)
        throw_error<InvalidArgument>("safetensors: {}: header is nested deeper than {} levels",
                                     file_, kDeepest);
    } else if (event == json::parse_event_t::object_end ||
               event == json::parse_event_t::array_end) {
      open_.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second)
        throw_error<InvalidArgument>("safetensors: {}: header has the key {} twice", file_,
                                     quote_text(key));
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> open_;
};

json parse_json(std::string_view text, const std::string& file) {
  // The JSON parser takes a zero byte for the end of its input and would skip the rest.
  if (text.empty() || text.front() != '{' || text.find('\0') != std::string_view::npos)
    throw_error<InvalidArgument>(
        "safetensors: {}: header is not JSON: expected '{{' first and no zero byte", file);
  try {
    return json::parse(text.begin(), text.end(), KeyGuard(file));
  } catch (const json::parse_error& error) {
    throw_error<InvalidArgument>("safetensors: {}: header of {} bytes is not JSON at byte {}", file,
                                 text.size(), error.byte);
  } catch (const json::out_of_range&) {
    throw_error<InvalidArgument>("safetensors: {}: header holds a number that is out of range",
                                 file);
  }
}

// A JSON array of integers that fit 64 signed bits.
std::vector<int64_t> integers(const json& value, std::string_view who, std::string_view key) {
  std::vector<int64_t> result;
  bool good = value.is_array();
  if (good)
    for (const json& item : value) {
      good = good && item.is_number_integer() &&
             !(item.is_number_unsigned() && item.get<uint64_t>() > INT64_MAX);
      if (good) result.push_back(item.get<int64_t>());
    }
  if (!good)
    throw_error<InvalidArgument>("{} has a {} that is not a list of 64-bit integers", who, key);
  return result;
}

SafetensorsHeader::Tensor parse_tensor(const json& value, const std::string& who) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value["dtype"].is_string() || !value.contains("shape") || !value.contains("data_offsets"))
    throw_error<InvalidArgument>(
        "{} is described wrongly, expected an object of dtype, shape and data_offsets", who);
  SafetensorsHeader::Tensor tensor;
  tensor.dtype = value["dtype"].get<std::string>();
  tensor.shape = integers(value["shape"], who, "shape");
  const std::vector<int64_t> offsets = integers(value["data_offsets"], who, "data_offsets");
  const int64_t bytes = safetensors_byte_size(who, tensor.dtype, tensor.shape);
  if (offsets.size() != 2)
    throw_error<InvalidArgument>("{} has {} data_offsets, expected 2 = begin and end", who,
                                 offsets.size());
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (tensor.begin < 0 || tensor.end < tensor.begin)
    throw_error<InvalidArgument>("{} has data_offsets [{}, {}], expected 0 <= begin <= end", who,
                                 tensor.begin, tensor.end);
  if (tensor.end - tensor.begin != bytes)
    throw_error<InvalidArgument>("{} has data_offsets [{}, {}] = {} bytes, expected {} for {}", who,
                                 tensor.begin, tensor.end, tensor.end - tensor.begin, bytes,
                                 safetensors_type_text(tensor.dtype, tensor.shape));
  return tensor;
}

SafetensorsMetadata parse_metadata(const json& value, const std::string& file) {
  SafetensorsMetadata metadata;
  if (!value.is_object())
    throw_error<InvalidArgument>("safetensors: {}: __metadata__ is {}, expected an object", file,
                                 value.type_name());
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      throw_error<InvalidArgument>("safetensors: {}: __metadata__ {} is {}, expected a string",
                                   file, quote_text(key), text.type_name());
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& file) {
  const json root = parse_json(text, file);
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__")
      header.metadata = parse_metadata(value, file);
    else
      header.tensors[name] =
          parse_tensor(value, fmt::format("safetensors: {}: tensor {}", file, quote_text(name)));
  }
  return header;
}

}  // namespace linescan
