#include "linescan/lab/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "linescan/base/error.h"

namespace linescan::lab {
namespace {

// The value below which a share of the sorted values lies, between two of them if need be.
double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Statistics summarise(std::vector<double> values) {
  if (values.empty()) throw_error<InvalidArgument>("statistics: no values, expected at least one");
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  Statistics result;
  result.count = static_cast<int>(values.size());
  result.median = quantile(values, 0.5);
  result.p10 = quantile(values, 0.1);
  result.p90 = quantile(values, 0.9);
  result.least = values.front();
  result.most = values.back();
  result.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  if (values.size() > 1) result.deviation = std::sqrt(squares / (count - 1));
  return result;
}

}  // namespace linescan::lab
