#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/files/atomic_write.h"
#include "linescan/files/quote_text.h"
#include "linescan/files/toml.h"

namespace linescan {
namespace {

using nlohmann::json;

// A basic string: JSON's escapes are TOML's but for DEL, which TOML wants escaped.
std::string string_text(const std::string& text, const std::string& where) {
  std::string escaped;
  try {
    escaped = json(text).dump();
  } catch (const json::type_error&) {
    throw_error<InvalidArgument>("toml: {} is not UTF-8", quote_text(where));
  }
  for (std::size_t at = 0; (at = escaped.find('\x7f', at)) != std::string::npos;)
    escaped.replace(at, 1, "\\u007F");
  return escaped;
}

std::string key_text(const std::string& key, const std::string& where) {
  if (key.find('.') != std::string::npos)
    throw_error<InvalidArgument>("toml: key {} holds a dot, expected an object for its table",
                                 quote_text(where));
  const bool bare = !key.empty() && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  return bare ? key : string_text(key, where);
}

std::string value_text(const json& value, const std::string& where) {
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_string()) return string_text(value.get_ref<const std::string&>(), where);
  if (value.is_number_integer()) {
    if (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)
      throw_error<InvalidArgument>("toml: {} is {}, expected at most {}", quote_text(where),
                                   value.get<uint64_t>(), INT64_MAX);
    return fmt::format("{}", value.get<int64_t>());
  }
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (!std::isfinite(number))
      throw_error<InvalidArgument>("toml: {} is {}, expected a finite number", quote_text(where),
                                   number);
    const std::string text = fmt::format("{}", number);  // the shortest that reads back equal
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  }
  if (value.is_array()) {
    std::string list;
    for (const json& item : value) {
      if (!item.is_number_integer())
        throw_error<InvalidArgument>("toml: {} is an array with {}, expected integers only",
                                     quote_text(where), item.type_name());
      list += fmt::format("{}{}", list.empty() ? "" : ", ", value_text(item, where));
    }
    return "[" + list + "]";
  }
  throw_error<InvalidArgument>(
      "toml: {} is {}, expected true or false, a number, text or an array of integers",
      quote_text(where), value.type_name());
}

// The table's own values first: behind the heading of an inner table they would belong to that.
void append_table(const json& table, const std::string& heading, const std::string& where,
                  std::string& text) {
  if (!heading.empty()) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", heading);
  for (const auto& [key, value] : table.items())
    if (!value.is_object())
      text += fmt::format("{} = {}\n", key_text(key, where + key), value_text(value, where + key));
  for (const auto& [key, value] : table.items())
    if (value.is_object())
      append_table(value, (heading.empty() ? "" : heading + ".") + key_text(key, where + key),
                   where + key + ".", text);
}

}  // namespace

std::string format_toml_options(const json& options) {
  if (!options.is_object())
    throw_error<InvalidArgument>("toml: options are {}, expected an object", options.type_name());
  std::string text;
  append_table(options, "", "", text);
  return text;
}

void write_toml_options(const std::filesystem::path& path, const json& options) {
  write_file_atomically(path, format_toml_options(options));
}

}  // namespace linescan
