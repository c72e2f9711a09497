// Options whose value is one of a few names: the table that reads them, and the error that lists them.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/base/nearest.h"

namespace linescan {

template <typename Value>
struct Choice {
  std::string_view name;
  Value value;
};

// The value that the table gives `name`. `kind` is what the message calls the option ("gate").
// Throws InvalidArgument with the nearest known name.
template <typename Value, std::size_t size>
Value read_choice(const Choice<Value> (&table)[size], std::string_view kind,
                  std::string_view name) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [&](const auto& choice) { return choice.name == name; });
  if (found != std::end(table)) return found->value;
  std::vector<std::string> names;
  for (const auto& choice : table) names.emplace_back(choice.name);
  throw InvalidArgument(unknown_name(kind, name, names));
}

}  // namespace linescan
