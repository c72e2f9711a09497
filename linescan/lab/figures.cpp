#include "linescan/lab/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace linescan::lab {
namespace {

bool is_noisy(const Measurement& measurement) {
  return measurement.fitted() && measurement.timed.seconds.variation() > kMostVariation;
}

}  // namespace

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

std::string spread(const Timed& timed) {
  return timed.seconds.count > 1 ? percent(timed.seconds.variation()) : "-";
}

std::string marked_rate(const Measurement& measurement) {
  return rate(measurement) + (is_noisy(measurement) ? kNoisy : "");
}

std::vector<std::string> notes_on_spread(const std::vector<Measurement>& measurements) {
  std::vector<std::string> notes;
  if (std::any_of(measurements.begin(), measurements.end(), is_noisy))
    notes.push_back(
        fmt::format("{} The times of these steps vary by more than {:.0f} % (deviation over mean): "
                    "do not rely on the figure.",
                    kNoisy, 100 * kMostVariation));
  if (std::any_of(measurements.begin(), measurements.end(),
                  [](const Measurement& m) { return m.fitted() && m.timed.seconds.count == 1; }))
    notes.emplace_back("One step each: how much they vary is not known.");
  return notes;
}

}  // namespace linescan::lab
