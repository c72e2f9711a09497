#include "linescan/train/report_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace linescan::report {
namespace {

constexpr std::string_view kNothing = "–";

bool continues_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string escape_html(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      case '\'':
        safe += "&#39;";
        break;
      default:
        safe += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
    }
  }
  return safe;
}

std::string count_text(int64_t value) {
  std::string digits = std::to_string(value);
  const std::ptrdiff_t first = value < 0 ? 1 : 0;
  for (std::ptrdiff_t at = std::ssize(digits) - 3; at > first; at -= 3) digits.insert(at, 1, ',');
  return digits;
}

std::string percent_text(double share, int decimals) {
  if (!std::isfinite(share)) return std::string(kNothing);
  return fmt::format("{:.{}f}\u00a0%", 100 * share, decimals);
}

std::string value_text(double value) {
  if (!std::isfinite(value)) return std::string(kNothing);
  const double size = std::abs(value);
  if (size >= 1e15) return fmt::format("{:.3g}", value);
  if (size >= 1000) return count_text(std::llround(value));
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  if (size >= 0.1) return fmt::format("{:.3f}", value);
  return fmt::format("{:.3g}", value);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || std::abs(seconds) > 1e12) return std::string(kNothing);
  if (seconds < 10) return fmt::format("{:.2g}\u00a0s", seconds);
  const auto total = static_cast<int64_t>(std::llround(seconds));
  if (total < 60) return fmt::format("{}\u00a0s", total);
  if (total < 3600) return fmt::format("{}\u00a0min {}\u00a0s", total / 60, total % 60);
  return fmt::format("{}\u00a0h {:02}\u00a0min", total / 3600, total / 60 % 60);
}

std::string short_count_text(double value) {
  if (!std::isfinite(value)) return std::string(kNothing);
  if (value >= 999.5e6) return fmt::format("{:.3g}\u00a0G", value / 1e9);
  if (value >= 999.5e3) return fmt::format("{:.3g}\u00a0M", value / 1e6);
  if (value >= 999.5) return fmt::format("{:.3g}\u00a0k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::size_t length_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !continues_character(c); }));
}

std::string shorten(std::string_view text, std::size_t characters) {
  if (length_of(text) <= characters) return std::string(text);
  std::string cut;
  std::size_t kept = 0;
  for (const char c : text) {
    if (!continues_character(c) && ++kept == characters) break;
    cut += c;
  }
  return cut + "…";
}

}  // namespace linescan::report
