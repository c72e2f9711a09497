#include "linescan/lab/page_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "linescan/train/report_text.h"

namespace linescan::lab {
namespace {

using report::LineChart;
using report::Point;
using report::Scale;
using report::Series;

// Colours of curves, in the order of use.
constexpr const char* kStyles[] = {"train", "validation", "ema", "fourth", "fifth"};

// The y axis for what the series show: logarithmic where small values would vanish.
Scale fitting_scale(const std::vector<Series>& series) {
  constexpr double kWideRange = 8;
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const Series& one : series)
    for (const Point& point : one.points) {
      low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  if (low > 0 && high > kWideRange * low) return report::log_scale(low, high);
  return report::nice_scale(0, high, 5);
}

}  // namespace

Scale scale_through(const std::vector<int64_t>& values) {
  Scale scale;
  scale.low = static_cast<double>(values.front());
  scale.high = static_cast<double>(values.back());
  if (values.size() == 1) {
    scale.low -= 1;
    scale.high += 1;
  }
  scale.ticks.assign(values.begin(), values.end());
  return scale;
}

Scale doubling_scale(const std::vector<int64_t>& values) {
  Scale scale = scale_through(values);
  scale.logarithmic = scale.low > 0;
  return scale;
}

std::string drawn(std::string title, std::string unit, std::string x_name, const Scale& x,
                  std::vector<Series> series) {
  LineChart chart;
  chart.title = std::move(title);
  chart.unit = std::move(unit);
  chart.x_name = std::move(x_name);
  chart.x = x;
  chart.y = fitting_scale(series);
  chart.series = std::move(series);
  chart.tick_text = [y = chart.y](double tick) { return y.text(tick); };
  chart.value_text = report::value_text;
  return report::line_chart(chart);
}

Series series_of(std::string name, std::size_t place) {
  return {std::move(name), kStyles[place % std::size(kStyles)], {}, Series::Mark::kDottedLine};
}

std::string bar_of(const StepBreakdown& step) {
  std::string bars, legend;
  double left = 0;
  for (int i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    const double share = step.breakdown.share(category);
    if (share <= 0) continue;
    bars += fmt::format(R"(<rect class="part{}" x="{:.2f}%" width="{:.2f}%" height="100%"/>)", i,
                        100 * left, 100 * share);
    legend += fmt::format("<li><i class=\"key part{}\"></i>{} <b class=\"value\">{}</b></li>", i,
                          name_of(category), report::percent_text(share));
    left += share;
  }
  const Breakdown& breakdown = step.breakdown;
  const std::string smaller = breakdown.batch != breakdown.asked_batch
                                  ? fmt::format(", batch {}", breakdown.batch)
                                  : std::string();
  return fmt::format(
      "<figure class=\"share\"><figcaption><h3>{} <small>{} ms{}</small></h3></figcaption>"
      "<svg class=\"stack\" role=\"img\" aria-label=\"parts of a step\">{}</svg>"
      "<ul class=\"legend\">{}</ul></figure>",
      name_of(step.kind), report::value_text(step.breakdown.total() * 1e3), smaller, bars, legend);
}

}  // namespace linescan::lab
