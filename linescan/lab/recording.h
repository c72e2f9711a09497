// What ran during a recorded piece of work, and the file that trace viewers read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "linescan/lab/category.h"

namespace linescan::lab {

struct Span {
  std::string name;
  Category category = Category::kRest;
  int64_t caller = -1;  // index of the span that this one is inside of
  int thread = 0;       // 0 is the first that did anything
  // Seconds from the start of the recording; those of the device, where they are known, on its stream.
  double start = 0, end = 0;
  bool on_device = false;
  double device_start = 0, device_end = 0;
};

struct Recording {
  std::vector<Span> spans;  // in the order in which they began
  double seconds = 0;       // of the whole, the device's work included
  double host_seconds = 0;  // until the host had started all of it
  bool on_gpu = false;

  // The time of each span without the spans inside of it. With a GPU it is the device's, 0 for a span
  // whose time there is not known: it counts for the one around it.
  std::vector<double> own_seconds() const;
};

// Stretches of a device's time in which it was made to wait, and what its clock would have shown without:
// in a pause it stands still.
class Pauses {
 public:
  // One after the other, seconds.
  void add(double start, double end);
  double without(double time) const;

 private:
  struct Pause {
    double start, end, before;  // before: the sum of those in front of it
  };
  std::vector<Pause> pauses_;
};

// {"traceEvents": [...]}: what chrome://tracing and ui.perfetto.dev open. A row for each thread of the
// host, and one for the device.
std::string chrome_trace(const Recording& recording);

}  // namespace linescan::lab
