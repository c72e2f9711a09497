#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "linescan/train/report_text.h"
#include "linescan/train/svg.h"

namespace linescan::report {
namespace {

// Pixels that a letter takes, on average, and the same for text at 45 degrees.
constexpr std::size_t kLetter = 7;
constexpr std::size_t kSlanted = 5;

constexpr double kDarkCell = 0.6;  // from this strength on the text changes colour

std::size_t longest(const std::vector<std::string>& names) {
  std::size_t length = 0;
  for (const std::string& name : names) length = std::max(length, length_of(name));
  return length;
}

struct Box {
  double x, y, width, height;  // percent of the plot
};

std::string rectangle(const char* style, const Box& box, double opacity) {
  return fmt::format(
      R"(<rect class="{}" x="{:.3f}%" y="{:.3f}%" width="{:.3f}%" height="{:.3f}%" fill-opacity="{:.3g}"/>)",
      style, box.x, box.y, box.width, box.height, opacity);
}

void append_cell(std::string* out, const HeatCell& cell, const Box& box) {
  auto write = std::back_inserter(*out);
  fmt::format_to(write, R"(<g class="cell"><title>{}</title>)", escape_html(cell.hint));
  *out += rectangle("back", box, 1);
  if (cell.strength > 0) *out += rectangle(cell.expected ? "right" : "wrong", box, cell.strength);
  const char* on = cell.strength > kDarkCell ? " on" : "";
  const double x = box.x + box.width / 2, y = box.y + box.height / 2;
  if (!cell.text.empty())
    fmt::format_to(write, R"(<text class="count{}" x="{:.3f}%" y="{:.3f}%" dy="{}em">{}</text>)",
                   on, x, y, cell.detail.empty() ? 0.34 : -0.1, escape_html(cell.text));
  if (!cell.detail.empty())
    fmt::format_to(write, R"(<text class="detail{}" x="{:.3f}%" y="{:.3f}%" dy="1.15em">{}</text>)",
                   on, x, y, escape_html(cell.detail));
  *out += "</g>";
}

}  // namespace

std::string heat_map(const HeatMap& map) {
  const std::size_t below = kSlanted * longest(map.columns);
  const double width = 100.0 / static_cast<double>(std::max<std::size_t>(map.columns.size(), 1));
  const double height = 100.0 / static_cast<double>(std::max<std::size_t>(map.rows.size(), 1));
  std::string out = fmt::format(
      R"(<svg class="heat" role="img" aria-label="{}" style="--rows:{};--left:{}px;--below:{}px">)",
      escape_html(map.label), map.rows.size(), 16 + kLetter * longest(map.rows), 34 + below);
  auto write = std::back_inserter(out);
  fmt::format_to(write, R"(<text class="name start" x="0" y="-10">{}</text>)",
                 escape_html(map.row_title));
  for (std::size_t row = 0; row < map.rows.size(); ++row) {
    const double y = height * static_cast<double>(row);
    fmt::format_to(write, R"(<text class="tick" x="-10" y="{:.3f}%" dy=".34em">{}</text>)",
                   y + height / 2, escape_html(map.rows[row]));
    for (std::size_t column = 0; column < map.columns.size(); ++column)
      append_cell(&out, map.cells[row][column],
                  {width * static_cast<double>(column), y, width, height});
  }
  // Rotation turns about the origin, so each name gets one of its own below its column.
  for (std::size_t column = 0; column < map.columns.size(); ++column)
    fmt::format_to(write,
                   R"-(<svg class="free" x="{:.3f}%" y="100%"><text class="tick" )-"
                   R"-(transform="translate(4 16) rotate(-45)">{}</text></svg>)-",
                   width * (static_cast<double>(column) + 0.5), escape_html(map.columns[column]));
  fmt::format_to(write, R"(<text class="name" x="100%" y="100%" dy="{}">{}</text></svg>)",
                 28 + below, escape_html(map.column_title));
  return out;
}

}  // namespace linescan::report
