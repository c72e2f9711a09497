// Plots as inline SVG that needs no scaling: places are given in percent of the plot area and text
// hangs around it, so one drawing fits any width and its letters stay the size of the page's.
//
// Colours come from the page's style sheet through class names, and so follow light and dark.
// Text given to these functions is plain; they escape it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "linescan/train/report_scale.h"

namespace linescan::report {

struct Point {
  double x = 0;
  double y = 0;
};

struct Series {
  enum class Mark {
    kLine,
    kFaintLine,   // raw values behind their smoothed line; not in the legend
    kDottedLine,  // a line with a dot at every point: few, rare measurements
  };
  std::string name;
  std::string style;  // class name of its colour
  std::vector<Point> points;
  Mark mark = Mark::kLine;
};

struct LineChart {
  std::string title;
  std::string unit;    // said once, beside the title; may be empty
  std::string x_name;  // "training step"
  Scale x;
  Scale y;
  std::function<std::string(double)> tick_text;   // of the y axis
  std::function<std::string(double)> value_text;  // in the legend
  std::vector<Series> series;
  bool tall = true;
};

// A <figure> with title, legend (the last value of each series) and plot, and the points as JSON
// for the page's script, which shows the values under the pointer in the legend.
std::string line_chart(const LineChart& chart);

struct HeatCell {
  double strength = 0;    // 0..1, how much of the colour
  bool expected = false;  // on the diagonal: has a colour of its own
  std::string text;
  std::string detail;  // small, below; hidden on narrow screens
  std::string hint;    // shown by browsers when the pointer rests on the cell
};

struct HeatMap {
  std::string label;  // what it shows, for those who cannot see it
  std::string row_title;
  std::string column_title;
  std::vector<std::string> rows;
  std::vector<std::string> columns;
  std::vector<std::vector<HeatCell>> cells;  // [rows][columns]
};

std::string heat_map(const HeatMap& map);

// A horizontal bar from 0 to `share` of its width, with a tick at `marker` unless that is NaN.
std::string bar(double share, double marker);

// Not more than `limit` points that draw the same picture: of each stretch the lowest and highest.
std::vector<Point> thin(const std::vector<Point>& points, std::size_t limit);

// Mean over a window of about `share` of all points, centred so that it does not lag. The window is
// narrower near the first points, where curves are steep, and one-sided near the last ones.
std::vector<Point> smooth(const std::vector<Point>& points, double share);

}  // namespace linescan::report
