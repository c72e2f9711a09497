// What the guards that are always on cost: the watchdog, its records of the modules and operators of a
// step, the look for a graph that was kept and the memory in the metrics, beside a step.

#include <fmt/format.h>
#include <torch/torch.h>

#include <chrono>
#include <memory>

#include "linescan/base/activity.h"
#include "linescan/ops/ss2d/ss2d.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/machine.h"
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

// As TrainingStep looks for it.
double seconds_of_graph_kept() {
  const at::Tensor logits = 2 * at::ones({1}).requires_grad_();
  std::weak_ptr<torch::autograd::Node> before;
  int64_t kept = 0;
  return seconds_of([&] {
    kept += !before.expired();
    before = logits.grad_fn();
  });
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
  const double memory = seconds_of([&] { memory_in_use(patient.compute()); });
  const double cost = static_cast<double>(modules) * module + static_cast<double>(ops) * op +
                      watch + seconds_of_graph_kept() +
                      memory / static_cast<double>(patient.recipe().log_every);
  const std::string measured = fmt::format(
      "the watchdog, the records of {} modules and {} operators, the look for a kept graph and "
      "memory every {} steps take {:.3g} us of a step of {:.4g} ms: {:.4f} %",
      modules, ops, patient.recipe().log_every, 1e6 * cost, 1e3 * step, 100 * cost / step);
  if (cost > kMostShare * step)
    return {"guards", Grade::kWarn, measured,
            "Steps as short as this are not worth watching: --watchdog off, or a larger batch."};
  return {"guards", Grade::kPass, measured};
}

}  // namespace linescan
