#include "linescan/train/report_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "linescan/train/report_text.h"

namespace linescan::report {
namespace {

// Quotients of ticks are whole numbers up to rounding.
constexpr double kTolerance = 1e-9;

// Makes the ends finite, ordered and different.
void repair(double* low, double* high) {
  constexpr double kHuge = 1e30;  // beyond it, differences and powers start to overflow
  *low = std::isfinite(*low) ? std::clamp(*low, -kHuge, kHuge) : 0;
  *high = std::isfinite(*high) ? std::clamp(*high, -kHuge, kHuge) : *low;
  if (*high < *low) std::swap(*low, *high);
  if (*high - *low > kTolerance * std::max(std::abs(*low), std::abs(*high))) return;
  const double margin = *low == 0 ? 1 : std::abs(*low) / 10;
  if (*low != 0) *low -= margin;
  *high += margin;
}

std::vector<double> ticks_within(double low, double high, double step) {
  std::vector<double> ticks;
  const double first = std::ceil(low / step - kTolerance);
  const double last = std::floor(high / step + kTolerance);
  for (double i = first; i <= last; ++i) ticks.push_back(i * step + 0.0);  // + 0.0: no "-0"
  return ticks;
}

}  // namespace

double Scale::at(double value) const {
  if (!logarithmic) return (value - low) / (high - low);
  if (!(value > 0)) return std::numeric_limits<double>::quiet_NaN();
  return std::log(value / low) / std::log(high / low);
}

std::string Scale::text(double tick) const {
  if (logarithmic) return fmt::format("{:g}", tick);
  const int decimals =
      std::clamp(static_cast<int>(-std::floor(std::log10(step) + kTolerance)), 0, 9);
  if (std::abs(tick) >= 1e15) return fmt::format("{:g}", tick);
  if (decimals > 0) return fmt::format("{:.{}f}", tick, decimals);
  const auto whole = static_cast<int64_t>(std::llround(tick));
  if (high >= 10000 && step >= 1000) return whole == 0 ? "0" : count_text(whole / 1000) + "k";
  return count_text(whole);
}

double tick_step(double span, int intervals) {
  const double least = span / intervals;
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1, 2, 5})
    if (factor * power >= least * (1 - kTolerance)) return factor * power;
  return 10 * power;
}

Scale nice_scale(double low, double high, int intervals) {
  repair(&low, &high);
  Scale scale;
  scale.step = tick_step(high - low, intervals);
  scale.low = std::floor(low / scale.step + kTolerance) * scale.step;
  scale.high = std::ceil(high / scale.step - kTolerance) * scale.step;
  scale.ticks = ticks_within(scale.low, scale.high, scale.step);
  return scale;
}

Scale tight_scale(double low, double high, int intervals, double least_step) {
  repair(&low, &high);
  Scale scale;
  scale.low = low;
  scale.high = high;
  scale.step = std::max(tick_step(high - low, intervals), least_step);
  scale.ticks = ticks_within(low, high, scale.step);
  return scale;
}

Scale log_scale(double low, double high) {
  Scale scale;
  scale.logarithmic = true;
  const double first = std::floor(std::log10(low) + kTolerance);
  const double last = std::max(std::ceil(std::log10(high) - kTolerance), first + 1);
  scale.low = std::pow(10, first);
  scale.high = std::pow(10, last);
  const bool roomy = last - first <= 2;
  const double stride = std::max(1.0, std::ceil((last - first) / 5));
  for (double power = first; power <= last; power += stride) {
    scale.ticks.push_back(std::pow(10, power));
    if (!roomy || power == last) continue;
    scale.ticks.push_back(2 * std::pow(10, power));
    scale.ticks.push_back(5 * std::pow(10, power));
  }
  return scale;
}

}  // namespace linescan::report
