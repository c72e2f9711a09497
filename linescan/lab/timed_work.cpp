#include "linescan/lab/timed_work.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "linescan/base/error.h"
#include "linescan/binding/gpu_runtime.h"
#include "linescan/device/cpu.h"

namespace linescan::lab {
namespace {

using Clock = std::chrono::steady_clock;
using Work = std::function<void()>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool enough(const Repetition& repetition, std::size_t runs, Clock::time_point begin) {
  constexpr std::size_t kFewest = 5, kMost = 1000;
  if (repetition.repetitions > 0) return runs >= static_cast<std::size_t>(repetition.repetitions);
  return runs >= kMost || (runs >= kFewest && seconds_since(begin) > repetition.seconds);
}

Timed on_cpu(const Repetition& repetition, const Work& work, const Work& before) {
  reset_peak_memory();
  for (int i = 0; i < repetition.warmup; ++i) {
    if (before) before();
    work();
  }
  std::vector<double> taken;
  const auto begin = Clock::now();
  while (!enough(repetition, taken.size(), begin)) {
    if (before) before();
    const auto start = Clock::now();
    work();
    taken.push_back(seconds_since(start));
  }
  return {summarise(std::move(taken)), peak_memory()};
}

std::unique_ptr<RecordedWork> record(const Work& work, const Message& warn) {
  try {
    return gpu_runtime().record(work);
  } catch (const DeviceError& error) {
    if (warn) warn(std::string("timed without a CUDA graph: ") + error.what());
    return nullptr;
  }
}

Timed on_gpu(const Compute& compute, const Repetition& repetition, const Work& work,
             const Work& before, const Message& warn) {
  constexpr int kAtOnce = 10;
  const int warmup =
      repetition.graph ? std::max(repetition.warmup, kRunsBeforeRecording) : repetition.warmup;
  GpuRuntime& runtime = gpu_runtime();
  const Work all = [&] {
    if (before) before();
    work();
  };
  for (int i = 0; i < warmup; ++i) all();
  // Not before: while libraries try their algorithms out they take far more than they use later.
  runtime.reset_peak_memory(compute.device);
  const std::unique_ptr<RecordedWork> graph = repetition.graph ? record(all, warn) : nullptr;
  if (graph)
    for (int i = 0; i < warmup; ++i) graph->replay();
  const Work run = graph ? [&] { graph->replay(); } : work;
  const Work ahead = graph ? Work() : before;
  std::vector<double> taken;
  runtime.synchronize(compute.device);
  const auto begin = Clock::now();
  do {
    const int count = repetition.repetitions > 0 ? repetition.repetitions : kAtOnce;
    const std::vector<double> some = runtime.time(count, run, ahead);
    taken.insert(taken.end(), some.begin(), some.end());
  } while (!enough(repetition, taken.size(), begin));
  return {summarise(std::move(taken)), runtime.peak_memory(compute.device), graph != nullptr};
}

}  // namespace

Timed time_work(const Compute& compute, const Repetition& repetition, const Work& work,
                const Work& before, const Message& warn) {
  return compute.on_gpu() ? on_gpu(compute, repetition, work, before, warn)
                          : on_cpu(repetition, work, before);
}

nlohmann::json to_json(const Statistics& seconds) {
  return {{"ms_median", seconds.median * 1e3},
          {"ms_mean", seconds.mean * 1e3},
          {"ms_deviation", seconds.deviation * 1e3},
          {"ms_p10", seconds.p10 * 1e3},
          {"ms_p90", seconds.p90 * 1e3},
          {"ms_least", seconds.least * 1e3},
          {"ms_most", seconds.most * 1e3},
          {"variation", seconds.variation()},
          {"repetitions", seconds.count}};
}

nlohmann::json to_json(const Timed& timed, const Compute& compute) {
  if (!timed.measured()) return {{"no_memory", true}};
  nlohmann::json document = to_json(timed.seconds);
  document["peak_mb"] = static_cast<double>(timed.peak_bytes) / 1e6;
  if (compute.on_gpu()) document["graph"] = timed.graph;
  return document;
}

}  // namespace linescan::lab
