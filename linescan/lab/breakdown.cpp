#include "linescan/lab/breakdown.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace linescan::lab {

double Breakdown::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

double Breakdown::share(Category category) const {
  const double all = total();
  return all > 0 ? seconds[static_cast<int>(category)] / all : 0;
}

Breakdown break_down(const Recording& recording) {
  Breakdown result;
  const std::vector<double> own = recording.own_seconds();
  for (std::size_t i = 0; i < own.size(); ++i)
    result.seconds[static_cast<int>(recording.spans[i].category)] += std::max(0.0, own[i]);
  // Threads may overlap; then nothing lies between operators.
  result.seconds[static_cast<int>(Category::kRest)] +=
      std::max(0.0, recording.seconds - result.total());
  return result;
}

nlohmann::json to_json(const Breakdown& breakdown) {
  nlohmann::json document = nlohmann::json::object();
  for (int i = 0; i < kCategories; ++i) {
    const auto category = static_cast<Category>(i);
    if (breakdown.seconds[i] > 0)
      document[std::string(name_of(category))] = {{"ms", breakdown.seconds[i] * 1e3},
                                                  {"share", breakdown.share(category)}};
  }
  return document;
}

}  // namespace linescan::lab
