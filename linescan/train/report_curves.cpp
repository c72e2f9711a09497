#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "linescan/train/report_scale.h"
#include "linescan/train/report_sections.h"
#include "linescan/train/report_text.h"
#include "linescan/train/svg.h"

namespace linescan::report {
namespace {

constexpr double kSmoothingShare = 0.05;  // of the run, per window

template <typename Row>
std::vector<Point> points_of(const std::vector<Row>& rows, double Row::*member) {
  std::vector<Point> points;
  for (const Row& row : rows)
    if (std::isfinite(row.*member)) points.push_back({row.step, row.*member});
  return points;
}

// The raw values faint, their mean over them.
void add_smoothed(LineChart* chart, const std::string& name, const std::string& style,
                  const std::vector<Point>& raw) {
  if (raw.empty()) return;
  chart->series.push_back({name, style, raw, Series::Mark::kFaintLine});
  chart->series.push_back({name, style, smooth(raw, kSmoothingShare), Series::Mark::kLine});
}

void add_measured(LineChart* chart, const std::string& name, const std::string& style,
                  const std::vector<Point>& points) {
  if (!points.empty()) chart->series.push_back({name, style, points, Series::Mark::kDottedLine});
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

// Of what must be seen whole: smoothed and measured curves. Single raw spikes may leave the plot.
Range range_of(const LineChart& chart) {
  Range range;
  for (const Series& series : chart.series)
    if (series.mark != Series::Mark::kFaintLine)
      for (const Point& point : series.points) range.include(point.y);
  return range;
}

// The value below which `share` of the raw values lie, so that the axis shows nearly all of them.
double quantile(const std::vector<Point>& points, double share) {
  std::vector<double> values;
  for (const Point& point : points) values.push_back(point.y);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * (values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

LineChart chart_of(std::string title, std::string unit, const Scale& steps) {
  LineChart chart;
  chart.title = std::move(title);
  chart.unit = std::move(unit);
  chart.x_name = "training step";
  chart.x = steps;
  chart.value_text = value_text;
  return chart;
}

std::string drawn(LineChart chart, const Scale& y) {
  if (chart.series.empty()) return "";
  chart.y = y;
  if (!chart.tick_text) chart.tick_text = [y](double tick) { return y.text(tick); };
  return line_chart(chart);
}

std::string loss_chart(const Metrics& metrics, const Scale& steps) {
  LineChart chart = chart_of("Loss", "cross-entropy", steps);
  const std::vector<Point> raw = points_of(metrics.train, &TrainRow::loss);
  add_smoothed(&chart, "training", "train", raw);
  add_measured(&chart, "validation", "validation", points_of(metrics.evals, &EvalRow::val_loss));
  Range range = range_of(chart);
  if (!raw.empty()) range.include(quantile(raw, 0.99));
  return drawn(chart, nice_scale(std::min(range.low, 0.0), range.high, 5));
}

std::string accuracy_chart(const Metrics& metrics, const Scale& steps) {
  LineChart chart = chart_of("Accuracy", "top-1", steps);
  const std::vector<Point> raw = points_of(metrics.train, &TrainRow::accuracy);
  const std::vector<Point> validation = points_of(metrics.evals, &EvalRow::val_top1);
  add_smoothed(&chart, "training", "train", raw);
  add_measured(&chart, "validation", "validation", validation);
  add_measured(&chart, "EMA", "ema", points_of(metrics.evals, &EvalRow::ema_val_top1));
  // The climb from chance takes moments; an axis that starts below the first validation (or most of
  // the training) leaves room for what happens afterwards.
  Range range;
  if (!raw.empty()) range.include(quantile(raw, 0.1));
  if (!validation.empty()) range.include(validation.front().y);
  const double low = std::isfinite(range.low) ? std::clamp(range.low, 0.0, 0.9) : 0;
  chart.value_text = [](double value) { return percent_text(value); };
  chart.tick_text = [](double value) { return percent_text(value, 0); };
  return drawn(chart, nice_scale(std::floor(low * 10) / 10, 1, 5));
}

// Learning rates are small: the axis counts in thousandths or millionths and says so.
std::string rate_chart(const Metrics& metrics, const Scale& steps) {
  std::vector<Point> points = points_of(metrics.train, &TrainRow::lr);
  Range range;
  for (const Point& point : points) range.include(point.y);
  const bool tiny = range.high < 1e-5, small = range.high < 0.1;
  const double factor = tiny ? 1e6 : small ? 1e3 : 1;
  LineChart chart = chart_of("Learning rate", tiny ? "× 10⁻⁶" : small ? "× 10⁻³" : "", steps);
  for (Point& point : points) point.y *= factor;
  if (!points.empty()) chart.series.push_back({"", "train", points, Series::Mark::kLine});
  chart.value_text = [factor](double value) { return value_text(value / factor); };
  chart.tall = false;
  return drawn(chart, nice_scale(0, range.high * factor, 4));
}

std::string throughput_chart(const Metrics& metrics, const Scale& steps, bool images) {
  LineChart chart =
      chart_of("Throughput", images ? "images per second" : "sequences per second", steps);
  const std::vector<Point> raw = points_of(metrics.train, &TrainRow::images_per_s);
  add_smoothed(&chart, "mean", "train", raw);
  chart.tall = false;
  const double high = raw.empty() ? 1 : std::max(range_of(chart).high, quantile(raw, 0.99));
  return drawn(chart, nice_scale(0, high, 4));
}

std::string gradient_chart(const Metrics& metrics, const Scale& steps) {
  constexpr double kWideRange = 50;  // ratio beyond which a linear axis hides the small ones
  LineChart chart = chart_of("Gradient norm", "before clipping", steps);
  const std::vector<Point> raw = points_of(metrics.train, &TrainRow::grad_norm);
  add_smoothed(&chart, "mean", "train", raw);
  chart.tall = false;
  if (raw.empty()) return "";
  const Range range = range_of(chart);
  if (range.low > 0 && range.high > kWideRange * range.low)
    return drawn(chart, log_scale(range.low, range.high));
  return drawn(chart, nice_scale(0, std::max(range.high, quantile(raw, 0.99)), 4));
}

double last_step(const Metrics& metrics) {
  double last = 1;
  if (!metrics.train.empty()) last = std::max(last, metrics.train.back().step);
  if (!metrics.evals.empty()) last = std::max(last, metrics.evals.back().step);
  return last;
}

}  // namespace

std::string curves_section(const RunData& run) {
  constexpr const char* kTitle = "How training went";
  const Metrics& metrics = run.metrics;
  if (!metrics.note.empty()) return section(kTitle, "", missing(metrics.note));
  const Scale steps = tight_scale(0, last_step(metrics), 7, 1);
  std::string body = "<div class=\"pair\">";
  body += loss_chart(metrics, steps) + accuracy_chart(metrics, steps);
  body += "</div><div class=\"trio\">";
  body += rate_chart(metrics, steps) + throughput_chart(metrics, steps, run.about_images) +
          gradient_chart(metrics, steps);
  body += "</div>";
  return section(kTitle,
                 fmt::format("Faint lines are values as logged, strong lines their mean over a "
                             "twentieth of the run. Validation {} are held out from training.",
                             run.about_images ? "images" : "sequences"),
                 body);
}

}  // namespace linescan::report
