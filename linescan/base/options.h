// Named options of a configuration struct: one table that reads "key=value", prints and explains.
//
//   struct Recipe { double lr = 1e-3; std::vector<int64_t> depths = {2, 2};
//                   std::vector<Option> options() { return {{"lr", &lr, "peak learning rate"}, ...}; } };
//   set_option(recipe.options(), "option", "lr", "3e-4");
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace linescan {

// Integers are written "12", numbers "1e-3", lists "2,2,8,2", switches "true" or "false".
using OptionTarget = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*>;

struct Option {
  std::string name;
  OptionTarget target;
  std::string help;
};

// Parses `text` into the option called `name`. `kind` is what messages call it ("model option").
// Throws InvalidArgument: unknown name (with the nearest one), not a number, NaN, out of range.
void set_option(std::span<const Option> options, std::string_view kind, std::string_view name,
                std::string_view text);

// The same for "name=value".
void set_option(std::span<const Option> options, std::string_view kind,
                std::string_view assignment);

// The value as set_option would read it back.
std::string to_text(const OptionTarget& target);

// {"name": value, ...} with JSON's own numbers, booleans and arrays.
nlohmann::json to_json(std::span<const Option> options);

}  // namespace linescan
