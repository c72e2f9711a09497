// What the watchdog and its records cost: their time for the modules and operators of one step, beside
// the step.

#include <fmt/format.h>

#include <chrono>

#include "linescan/base/activity.h"
#include "linescan/ops/ss2d/ss2d.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/watchdog.h"

namespace linescan {
namespace {

constexpr double kMostShare = 0.01;  // of a step
constexpr int kRepetitions = 2000;

template <class Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRepetitions; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
         kRepetitions;
}

}  // namespace

Finding check_guards(const Patient& patient) {
  Trial trial(patient);
  trial.run(0);  // libraries set themselves up
  const Activity before = activity();
  const auto start = std::chrono::steady_clock::now();
  trial.run(0);
  const double step =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Activity after = activity();

  const double module = seconds_of([] { const ModuleRunning running("layers.0.blocks.0"); });
  const Ss2dPlan plan;
  const double op = seconds_of([&] { const OperatorRunning running(plan); });
  Watchdog dog({.seconds = 3600}, [](const Hang&) {});
  const double watch = seconds_of([&] {
    dog.begin("step", 1);
    dog.end();
  });
  const int64_t modules = after.modules - before.modules, ops = after.ops - before.ops;
  const double cost = static_cast<double>(modules) * module + static_cast<double>(ops) * op + watch;
  const std::string measured = fmt::format(
      "the watchdog and the records of {} modules and {} operators take {:.3g} us of a step of "
      "{:.4g} "
      "ms: {:.4f} %",
      modules, ops, 1e6 * cost, 1e3 * step, 100 * cost / step);
  if (cost > kMostShare * step)
    return {"guards", Grade::kWarn, measured,
            "Steps as short as this are not worth watching: --watchdog off, or a larger batch."};
  return {"guards", Grade::kPass, measured};
}

}  // namespace linescan
