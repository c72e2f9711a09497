#include "linescan/lab/figures.h"

#include <fmt/format.h>

#include <cmath>

namespace linescan::lab {

std::string figure(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size == 0 || size >= 999.5) return fmt::format("{:.0f}", value);
  if (size >= 99.95) return fmt::format("{:.1f}", value);
  if (size >= 9.995) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string ms(double seconds) { return figure(seconds * 1e3); }
std::string mb(int64_t bytes) { return fmt::format("{:.0f}", static_cast<double>(bytes) / 1e6); }
std::string kib(int64_t bytes) { return fmt::format("{:.1f}", static_cast<double>(bytes) / 1024); }

std::string rate(const Measurement& measurement) {
  return measurement.fitted() ? figure(measurement.images_per_second()) : kNoMemory;
}

}  // namespace linescan::lab
