#include "linescan/base/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"

namespace linescan {
namespace {

template <typename Number>
bool parse_number(std::string_view text, Number* value) {
  Number parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<Number>)
    if (!std::isfinite(parsed)) return false;
  *value = parsed;
  return true;
}

bool parse(std::string_view text, bool* value) {
  if (text != "true" && text != "false") return false;
  *value = text == "true";
  return true;
}
bool parse(std::string_view text, int64_t* value) { return parse_number(text, value); }
bool parse(std::string_view text, double* value) { return parse_number(text, value); }
bool parse(std::string_view text, std::string* value) {
  *value = text;
  return true;
}
bool parse(std::string_view text, std::vector<int64_t>* value) {
  std::vector<int64_t> parsed;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    int64_t item = 0;
    if (!parse_number(text.substr(0, comma), &item)) return false;
    parsed.push_back(item);
    if (comma + 1 == text.size()) return false;  // "1,2,"
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  if (parsed.empty()) return false;
  *value = std::move(parsed);
  return true;
}

std::string_view expected(bool*) { return "true or false"; }
std::string_view expected(int64_t*) { return "an integer of 64 bits"; }
std::string_view expected(double*) { return "a finite number"; }
std::string_view expected(std::string*) { return "text"; }
std::string_view expected(std::vector<int64_t>*) { return "integers separated by commas"; }

}  // namespace

void set_option(std::span<const Option> options, std::string_view kind, std::string_view name,
                std::string_view text) {
  const auto found = std::find_if(options.begin(), options.end(),
                                  [&](const Option& option) { return option.name == name; });
  if (found == options.end()) {
    std::vector<std::string> names;
    for (const Option& option : options) names.push_back(option.name);
    throw InvalidArgument(unknown_name(kind, name, names));
  }
  std::visit(
      [&](auto* target) {
        if (!parse(text, target))
          throw_error<InvalidArgument>("{} {} is '{}', expected {}", kind, name, text,
                                       expected(target));
      },
      found->target);
}

void set_option(std::span<const Option> options, std::string_view kind,
                std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0)
    throw_error<InvalidArgument>("{} is '{}', expected key=value", kind, assignment);
  set_option(options, kind, assignment.substr(0, equals), assignment.substr(equals + 1));
}

std::string to_text(const OptionTarget& target) {
  return std::visit(
      [](auto* value) -> std::string {
        using Value = std::remove_pointer_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, std::vector<int64_t>>)
          return fmt::format("{}", fmt::join(*value, ","));
        else
          return fmt::format("{}", *value);
      },
      target);
}

nlohmann::json to_json(std::span<const Option> options) {
  nlohmann::json object = nlohmann::json::object();
  for (const Option& option : options)
    std::visit([&](auto* value) { object[option.name] = *value; }, option.target);
  return object;
}

}  // namespace linescan
