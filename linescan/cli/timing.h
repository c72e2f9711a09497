// Repeats a piece of work and says how long it takes: the median and the spread.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <nlohmann/json_fwd.hpp>

namespace linescan::cli {

struct Timing {
  double median = 0, p10 = 0, p90 = 0;  // seconds
  int repetitions = 0;
};

// Runs `work` twice to warm up, then until `seconds` have passed, at least 5 and at most 1000
// times. `before`, if given, runs untimed ahead of every repetition.
Timing measure(double seconds, const std::function<void()>& work,
               const std::function<void()>& before = {});

// The same for work on a GPU, by the device's own clock; ten repetitions are started at a time, as
// in real use, where the next does not wait for the last. The warm-up is the caller's.
Timing measure_gpu(c10::Device device, double seconds, const std::function<void()>& work,
                   const std::function<void()>& before = {});

// {"ms_median", "ms_p10", "ms_p90", "repetitions"}
nlohmann::json to_json(const Timing& timing);

}  // namespace linescan::cli
