// Repeats a piece of work and says how long it takes and how much memory it needs.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "linescan/lab/statistics.h"
#include "linescan/models/compute.h"

namespace linescan::lab {

struct Repetition {
  int warmup = 2;  // runs that do not count
  int repetitions =
      0;  // runs that do; 0: until `seconds` have passed, at least 5 and about 1000 at most
  double seconds = 0;
  bool graph = false;  // on a GPU: record the work once and start it as a whole
};

struct Timed {
  Statistics seconds;  // of one run
  // CPU: the most memory that the process held at once; GPU: the most that its tensors took after the
  // warm-up.
  int64_t peak_bytes = 0;
  bool graph = false;  // recorded, as wanted

  bool measured() const { return seconds.count > 0; }  // not where memory did not suffice
};

using Message = std::function<void(const std::string&)>;

// `before`, if given, runs untimed ahead of every run. On the CPU each run is timed by itself. On a GPU
// runs are started without waiting for each other, as in real use, and each is timed by the device's
// own clock; work that cannot be recorded is timed as it is, and `warn` hears why.
Timed time_work(const Compute& compute, const Repetition& repetition,
                const std::function<void()>& work, const std::function<void()>& before = {},
                const Message& warn = {});

// {"ms_median", "ms_mean", "ms_deviation", "ms_p10", "ms_p90", "ms_least", "ms_most", "variation",
// "repetitions"}
nlohmann::json to_json(const Statistics& seconds);

// {"peak_mb"}, those of its times, and on a GPU {"graph"}; {"no_memory": true} if not measured.
nlohmann::json to_json(const Timed& timed, const Compute& compute);

}  // namespace linescan::lab
