#include "linescan/base/nearest.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace linescan {
namespace {

// Levenshtein distance, one row at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  const auto best = std::min_element(candidates.begin(), candidates.end(),
                                     [&](const std::string& a, const std::string& b) {
                                       return edit_distance(name, a) < edit_distance(name, b);
                                     });
  return best == candidates.end() ? std::string() : *best;
}

std::string unknown_name(std::string_view kind, std::string_view name,
                         std::span<const std::string> candidates) {
  std::string text = fmt::format("unknown {} '{}'", kind, name);
  if (candidates.empty()) return text;
  if (!name.empty()) text += fmt::format("; did you mean '{}'?", nearest_name(name, candidates));
  constexpr std::size_t kShortList = 12;
  if (candidates.size() <= kShortList)
    text += fmt::format(" (known: {})", fmt::join(candidates, ", "));
  return text;
}

}  // namespace linescan
