// "Did you mean ...": the known name closest to a misspelt one.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace linescan {

// The candidate with the smallest edit distance to `name`; empty if there are no candidates.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

// "unknown model 'vmamba_tinny'; did you mean 'vmamba_tiny_s1l8'?" and, for short lists, all names.
std::string unknown_name(std::string_view kind, std::string_view name,
                         std::span<const std::string> candidates);

}  // namespace linescan
