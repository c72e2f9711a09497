// From data to places on an axis, and where the ticks of the axis go.
#pragma once

#include <string>
#include <vector>

namespace linescan::report {

struct Scale {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<double> ticks;  // rising, within [low, high]
  double step = 1;            // between neighbouring ticks, on a linear scale

  // 0 at `low`, 1 at `high`; beyond them it goes on. NaN for values that have no place (zero on a
  // logarithmic scale).
  double at(double value) const;

  // Exactly the decimals that tell the ticks apart: "0.25", "1,500", "20k"; "0.01" when logarithmic.
  std::string text(double tick) const;
};

// The smallest of 1, 2, 5 times a power of ten that cuts `span` into at most `intervals` pieces.
double tick_step(double span, int intervals);

// Ends rounded outwards to ticks. NaN, infinite, equal or swapped ends still give a usable scale.
Scale nice_scale(double low, double high, int intervals);

// Ends kept as they are, ticks within; no ticks closer than `least_step` (1 for counts).
Scale tight_scale(double low, double high, int intervals, double least_step = 0);

// Ticks at powers of ten, with 2 and 5 between them where there is room. Needs 0 < low <= high.
Scale log_scale(double low, double high);

}  // namespace linescan::report
