// What a handful of repeated measurements comes to.
#pragma once

#include <vector>

namespace linescan::lab {

struct Statistics {
  int count = 0;
  double median = 0, mean = 0;
  double deviation = 0;  // of one value, by count - 1; 0 of a single one
  double p10 = 0, p90 = 0, least = 0, most = 0;

  // The deviation as a share of the mean: the coefficient of variation.
  double variation() const { return mean == 0 ? 0 : deviation / mean; }
};

// Throws InvalidArgument if there are no values.
Statistics summarise(std::vector<double> values);

}  // namespace linescan::lab
