#include "linescan/lab/recording.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace linescan::lab {

std::vector<double> Recording::own_seconds() const {
  std::vector<double> own(spans.size(), 0.0);
  const auto counts = [&](const Span& span) { return !on_gpu || span.on_device; };
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    if (!counts(span)) continue;
    const double taken = on_gpu ? span.device_end - span.device_start : span.end - span.start;
    own[i] += taken;
    int64_t around = span.caller;
    while (around >= 0 && !counts(spans[around])) around = spans[around].caller;
    if (around >= 0) own[around] -= taken;
  }
  return own;
}

void Pauses::add(double start, double end) {
  double before = 0;
  if (!pauses_.empty()) {
    const Pause& last = pauses_.back();
    before = last.before + last.end - last.start;
    start = std::max(start, last.end);
  }
  pauses_.push_back({start, std::max(start, end), before});
}

double Pauses::without(double time) const {
  const auto next =
      std::upper_bound(pauses_.begin(), pauses_.end(), time,
                       [](double at, const Pause& pause) { return at < pause.start; });
  if (next == pauses_.begin()) return time;
  const Pause& last = *std::prev(next);
  return last.start - last.before + std::max(0.0, time - last.end);
}

std::string chrome_trace(const Recording& recording) {
  using nlohmann::json;
  constexpr int kHost = 1, kDevice = 2;
  constexpr double kMicroseconds = 1e6;
  json events = json::array();
  const auto name_process = [&](int process, const char* name) {
    events.push_back({{"name", "process_name"},
                      {"ph", "M"},
                      {"pid", process},
                      {"tid", 0},
                      {"args", {{"name", name}}}});
  };
  const auto add = [&](const Span& span, int process, int thread, double start, double end) {
    events.push_back({{"name", span.name},
                      {"cat", name_of(span.category)},
                      {"ph", "X"},
                      {"pid", process},
                      {"tid", thread},
                      {"ts", start * kMicroseconds},
                      {"dur", std::max(0.0, end - start) * kMicroseconds}});
  };
  name_process(kHost, "host");
  if (recording.on_gpu) name_process(kDevice, "GPU");
  for (const Span& span : recording.spans) {
    add(span, kHost, span.thread, span.start, span.end);
    if (span.on_device) add(span, kDevice, 0, span.device_start, span.device_end);
  }
  return json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump();
}

}  // namespace linescan::lab
