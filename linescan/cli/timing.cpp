#include "linescan/cli/timing.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "linescan/binding/gpu_runtime.h"

namespace linescan::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The value below which a share of the sorted values lies.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

Timing summary(std::vector<double>&& taken) {
  std::sort(taken.begin(), taken.end());
  return {quantile(taken, 0.5), quantile(taken, 0.1), quantile(taken, 0.9),
          static_cast<int>(taken.size())};
}

constexpr int kMost = 1000;  // repetitions

}  // namespace

Timing measure(double seconds, const std::function<void()>& work,
               const std::function<void()>& before) {
  constexpr int kWarmUp = 2, kFewest = 5;
  std::vector<double> taken;
  auto begin = Clock::now();
  for (int run = 0; run < kWarmUp + kMost; ++run) {
    if (before) before();
    if (run == kWarmUp) begin = Clock::now();
    const auto start = Clock::now();
    work();
    if (run >= kWarmUp) taken.push_back(seconds_since(start));
    if (static_cast<int>(taken.size()) >= kFewest && seconds_since(begin) > seconds) break;
  }
  return summary(std::move(taken));
}

Timing measure_gpu(c10::Device device, double seconds, const std::function<void()>& work,
                   const std::function<void()>& before) {
  constexpr int kAtOnce = 10;
  std::vector<double> taken;
  gpu_runtime().synchronize(device);
  const auto begin = Clock::now();
  do {
    const std::vector<double> some = gpu_runtime().time(kAtOnce, work, before);
    taken.insert(taken.end(), some.begin(), some.end());
  } while (static_cast<int>(taken.size()) < kMost && seconds_since(begin) < seconds);
  return summary(std::move(taken));
}

nlohmann::json to_json(const Timing& timing) {
  return {{"ms_median", timing.median * 1e3},
          {"ms_p10", timing.p10 * 1e3},
          {"ms_p90", timing.p90 * 1e3},
          {"repetitions", timing.repetitions}};
}

}  // namespace linescan::cli
