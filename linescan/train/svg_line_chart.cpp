#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "linescan/train/report_text.h"
#include "linescan/train/svg.h"

namespace linescan::report {
namespace {

// Most points that a curve keeps: about one a pixel.
constexpr std::size_t kCurvePoints = 700;
// Points that the script can show; the pointer is coarser than the curve.
constexpr std::size_t kReadOutPoints = 300;

double share_of_width(const LineChart& chart, Point point) { return chart.x.at(point.x); }
double share_of_height(const LineChart& chart, Point point) {
  // Far outside the plot is as good as a little outside: nothing overflows, and lines leave the
  // plot at about the right slope.
  return std::clamp(1 - chart.y.at(point.y), -2.0, 3.0);
}

std::vector<Point> drawable(const LineChart& chart, const Series& series) {
  std::vector<Point> points;
  for (const Point& point : series.points)
    if (std::isfinite(chart.x.at(point.x)) && std::isfinite(chart.y.at(point.y)))
      points.push_back(point);
  return points;
}

void append_grid(std::string* out, const LineChart& chart) {
  auto write = std::back_inserter(*out);
  for (const double tick : chart.y.ticks) {
    const double y = 100 * (1 - chart.y.at(tick));
    fmt::format_to(write, R"(<line class="grid" x2="100%" y1="{0:.2f}%" y2="{0:.2f}%"/>)", y);
    fmt::format_to(write, R"(<text class="tick" x="-8" y="{:.2f}%" dy=".34em">{}</text>)", y,
                   escape_html(chart.tick_text(tick)));
  }
  fmt::format_to(write, R"(<line class="axis" x2="100%" y1="100%" y2="100%"/>)");
  for (const double tick : chart.x.ticks) {
    const double x = 100 * chart.x.at(tick);
    fmt::format_to(write,
                   R"(<svg class="free" x="{:.2f}%" y="100%"><line class="axis" y2="4"/>)"
                   R"(<text class="tick under" y="17">{}</text></svg>)",
                   x, escape_html(chart.x.text(tick)));
  }
  fmt::format_to(write, R"(<text class="name" x="100%" y="100%" dy="34">{}</text>)",
                 escape_html(chart.x_name));
}

// The curve in a box of 1000 x 1000 that is stretched over the plot.
void append_curve(std::string* out, const LineChart& chart, const Series& series,
                  const std::vector<Point>& points) {
  if (points.size() < 2) return;
  const bool faint = series.mark == Series::Mark::kFaintLine;
  fmt::format_to(std::back_inserter(*out), R"(<path class="curve {}{}" d=")",
                 escape_html(series.style), faint ? " faint" : "");
  char command = 'M';
  for (const Point& point : thin(points, kCurvePoints)) {
    fmt::format_to(std::back_inserter(*out), "{}{:.1f} {:.1f}", command,
                   1000 * share_of_width(chart, point), 1000 * share_of_height(chart, point));
    command = 'L';
  }
  *out += "\"/>";
}

void append_dots(std::string* out, const LineChart& chart, const Series& series,
                 const std::vector<Point>& points) {
  // A curve of one point would be invisible; many dots would hide the curve.
  constexpr std::size_t kManyDots = 80;
  const bool dotted = series.mark == Series::Mark::kDottedLine && points.size() <= kManyDots;
  if (!dotted && points.size() != 1) return;
  for (const Point& point : points) {
    const double y = share_of_height(chart, point);
    if (y < 0 || y > 1) continue;
    fmt::format_to(std::back_inserter(*out),
                   R"(<circle class="dot {}" cx="{:.2f}%" cy="{:.2f}%" r="3"/>)",
                   escape_html(series.style), 100 * share_of_width(chart, point), 100 * y);
  }
}

// [{"x": [percent], "y": [percent], "v": ["0.312"], "s": ["1,200"]}, ...], one a legend entry.
std::string read_out(const LineChart& chart) {
  std::string json = "[";
  for (const Series& series : chart.series) {
    if (series.mark == Series::Mark::kFaintLine) continue;
    const std::vector<Point> all = drawable(chart, series);
    const std::size_t stride = all.size() / kReadOutPoints + 1;
    std::string x, y, values, steps;
    for (std::size_t i = 0; i < all.size(); i += stride) {
      const char* comma = i == 0 ? "" : ",";
      x += fmt::format("{}{:.2f}", comma, 100 * share_of_width(chart, all[i]));
      y += fmt::format("{}{:.2f}", comma, 100 * share_of_height(chart, all[i]));
      values += fmt::format("{}\"{}\"", comma, chart.value_text(all[i].y));
      steps += fmt::format("{}\"{}\"", comma, value_text(all[i].x));
    }
    if (json.size() > 1) json += ',';
    json += fmt::format(R"({{"c":"{}","x":[{}],"y":[{}],"v":[{}],"s":[{}]}})", series.style, x, y,
                        values, steps);
  }
  return json + "]";
}

void append_legend(std::string* out, const LineChart& chart) {
  const bool several = std::count_if(chart.series.begin(), chart.series.end(), [](const Series& s) {
                         return s.mark != Series::Mark::kFaintLine;
                       }) > 1;
  *out += "<ul class=\"legend\">";
  for (const Series& series : chart.series) {
    if (series.mark == Series::Mark::kFaintLine) continue;
    const std::vector<Point> points = drawable(chart, series);
    // A colour tells series apart; one alone needs none.
    const std::string key =
        several ? fmt::format(R"(<i class="key {}"></i>)", escape_html(series.style)) : "";
    fmt::format_to(std::back_inserter(*out), R"(<li>{}{} <b class="value">{}</b></li>)", key,
                   escape_html(series.name),
                   points.empty() ? "–" : escape_html(chart.value_text(points.back().y)));
  }
  *out += "</ul>";
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  std::string out = R"(<figure class="chart"><figcaption><h3>)";
  out += escape_html(chart.title);
  if (!chart.unit.empty()) out += " <small>" + escape_html(chart.unit) + "</small>";
  out += "</h3>";
  append_legend(&out, chart);
  fmt::format_to(std::back_inserter(out),
                 R"(</figcaption><svg class="plot {}" role="img" aria-label="{} over {}">)",
                 chart.tall ? "tall" : "low", escape_html(chart.title), escape_html(chart.x_name));
  append_grid(&out, chart);
  out += R"(<svg width="100%" height="100%" viewBox="0 0 1000 1000" preserveAspectRatio="none">)";
  for (const Series& series : chart.series)
    append_curve(&out, chart, series, drawable(chart, series));
  out += "</svg>";
  for (const Series& series : chart.series)
    append_dots(&out, chart, series, drawable(chart, series));
  out += R"(<g class="hover"></g><rect class="catch" width="100%" height="100%"/></svg>)";
  out += "<script type=\"application/json\">" + read_out(chart) + "</script></figure>";
  return out;
}

}  // namespace linescan::report
