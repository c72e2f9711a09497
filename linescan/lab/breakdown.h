// What a step's time goes to: scans, products, convolutions, norms, the MLP, and the rest.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>

#include "linescan/lab/recording.h"

namespace linescan::lab {

struct Breakdown {
  std::array<double, kCategories> seconds{};  // by Category; they add up to the whole
  // Images of that step, and as many as were asked for: recording takes memory too.
  int64_t batch = 0, asked_batch = 0;

  double total() const;
  double share(Category category) const;
};

// The rest includes what lies between operators: on a GPU that waits for the host, most of it.
Breakdown break_down(const Recording& recording);

// {"scan": {"ms", "share"}, ...} without the categories that took no time.
nlohmann::json to_json(const Breakdown& breakdown);

}  // namespace linescan::lab
