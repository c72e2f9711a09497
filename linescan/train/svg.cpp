#include "linescan/train/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace linescan::report {

std::string bar(double share, double marker) {
  const auto percent = [](double value) { return 100 * std::clamp(value, 0.0, 1.0); };
  std::string out =
      R"(<svg class="bar" aria-hidden="true"><rect class="track" width="100%" height="100%"/>)";
  if (std::isfinite(share))
    out += fmt::format(R"(<rect class="fill" width="{:.2f}%" height="100%"/>)", percent(share));
  if (std::isfinite(marker))
    out += fmt::format(R"(<line class="marker" x1="{0:.2f}%" x2="{0:.2f}%" y1="-3" y2="12"/>)",
                       percent(marker));
  return out + "</svg>";
}

std::vector<Point> thin(const std::vector<Point>& points, std::size_t limit) {
  if (points.size() <= limit || limit < 2) return points;
  std::vector<Point> kept;
  const std::size_t stretches = limit / 2;
  for (std::size_t i = 0; i < stretches; ++i) {
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(points.size() * i / stretches);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>(points.size() * (i + 1) / stretches);
    const auto [low, high] =
        std::minmax_element(first, end, [](const Point& a, const Point& b) { return a.y < b.y; });
    kept.push_back(std::min(low, high)[0]);
    if (low != high) kept.push_back(std::max(low, high)[0]);
  }
  return kept;
}

std::vector<Point> smooth(const std::vector<Point>& points, double share) {
  const auto count = std::ssize(points);
  const auto half = static_cast<std::ptrdiff_t>(share * static_cast<double>(count) / 2);
  std::vector<double> sums(points.size() + 1, 0.0);
  for (std::ptrdiff_t i = 0; i < count; ++i) sums[i + 1] = sums[i] + points[i].y;
  std::vector<Point> smoothed(points);
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const std::ptrdiff_t back = std::min(half, i);
    const std::ptrdiff_t ahead = std::min(back, count - 1 - i);
    smoothed[i].y = (sums[i + ahead + 1] - sums[i - back]) / static_cast<double>(back + 1 + ahead);
  }
  return smoothed;
}

}  // namespace linescan::report
