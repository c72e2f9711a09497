#include "linescan/train/unused.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace linescan {

std::vector<std::string> unused_parameters(const torch::nn::Module& network) {
  std::vector<std::string> names;
  for (const auto& item : network.named_parameters())
    if (item.value().requires_grad() && !item.value().grad().defined()) names.push_back(item.key());
  return names;
}

std::string name_some(std::span<const std::string> names) {
  constexpr std::size_t kMost = 4;
  if (names.size() <= kMost + 1) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(names.first(kMost), ", "), names.size() - kMost);
}

}  // namespace linescan
