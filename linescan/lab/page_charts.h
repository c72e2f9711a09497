// The plots of the laboratory's page, on top of those of all pages (train/svg.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linescan/lab/findings.h"
#include "linescan/train/svg.h"

namespace linescan::lab {

// An axis with a tick at every value that was measured; `values` rise and are not empty.
report::Scale scale_through(const std::vector<int64_t>& values);

// The same on a logarithmic axis, for values that double from one to the next.
report::Scale doubling_scale(const std::vector<int64_t>& values);

// A series without points yet, in the colour of its place among its chart's.
report::Series series_of(std::string name, std::size_t place);

// A chart whose y axis is logarithmic where small values would vanish on a linear one.
std::string drawn(std::string title, std::string unit, std::string x_name, const report::Scale& x,
                  std::vector<report::Series> series);

// The parts of a step side by side in one bar, with a legend.
std::string bar_of(const StepBreakdown& step);

}  // namespace linescan::lab
