#include "linescan/train/session.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "linescan/base/error.h"
#include "linescan/files/toml.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/machine.h"
#include "linescan/train/report.h"
#include "linescan/train/run_folder.h"
#include "linescan/train/task.h"

namespace linescan {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kSummaryFile = "summary.json";
constexpr int64_t kGallery = 60;  // mistakes kept for the report

void say(const TrainingHooks& hooks, const std::string& text) {
  if (hooks.message) hooks.message(text);
}

void describe_run(const fs::path& run, const RunConfig& config, const Compute& compute) {
  write_toml_options(run / "config.toml", to_json(config));
  write_json_file(run / "machine.json", describe_machine(compute));
}

int64_t count_parameters(const torch::nn::Module& network) {
  int64_t count = 0;
  for (const at::Tensor& parameter : network.parameters()) count += parameter.numel();
  return count;
}

// Judges the best checkpoint on the test examples and writes summary, evaluation and report. Empty if
// a signal cut it off.
std::optional<double> conclude(const fs::path& run, const RunConfig& config, const Task& task,
                               const Trainer& trainer, const TrainingHooks& hooks) {
  const TrainingState& state = trainer.state();
  const Compute& compute = trainer.compute();
  Network best = task.make_network();
  load_trained_weights(find_checkpoint(run, "best"), *best.module);
  best.module->to(compute.device);
  const auto stop = [&] { return hooks.stop_signal != nullptr && hooks.stop_signal->load() != 0; };
  const auto evaluation = task.evaluate(best, Split::kTest,
                                        {.batch = config.recipe.batch,
                                         .mistakes = kGallery,
                                         .stop = stop,
                                         .compute = compute,
                                         .graph = config.recipe.graph});
  if (!evaluation) return std::nullopt;
  const auto examples = static_cast<double>(state.step * config.recipe.batch);
  write_json_file(run / "evaluation.json", task.document(*evaluation));
  // The summary comes last of the numbers: its presence says that the run is finished.
  write_json_file(run / kSummaryFile, {{"test_top1", evaluation->top1},
                                       {"test_top5", evaluation->top5},
                                       {"test_loss", evaluation->loss},
                                       {"training_seconds", state.seconds},
                                       {"images_per_s", examples / state.seconds},
                                       {"steps", state.step},
                                       {"epochs", examples / task.examples()},
                                       {"best_val_top1", state.best_top1},
                                       {"model", config.model},
                                       {"parameters", count_parameters(*best.module)}});
  write_report(run);
  return evaluation->top1;
}

// ", on NVIDIA H200 in bf16" behind a message; nothing for the CPU.
std::string where(const Compute& compute) {
  if (!compute.on_gpu()) return {};
  return fmt::format(", on {} in {}", describe(compute), name_of(compute.precision));
}

SessionResult finish(Trainer& trainer, const fs::path& run, const RunConfig& config,
                     const Task& task, const TrainingHooks& hooks) {
  if (!trainer.run()) return {run, SessionEnd::kStopped};
  const std::optional<double> top1 = conclude(run, config, task, trainer, hooks);
  if (!top1) return {run, SessionEnd::kStopped};
  return {run, SessionEnd::kFinished, *top1};
}

SessionResult begin(const SessionRequest& request, const TrainingHooks& hooks) {
  RunConfig config = make_config(request.options);
  // Refused before the data are read, and again, for good, when the folder is made.
  if (request.run && fs::exists(*request.run)) create_run_folder(*request.run);
  const std::unique_ptr<Task> task = make_task(&config, &request.options);
  set_threads(config.recipe);
  Trainer trainer(config, *task, hooks);
  if (request.run) create_run_folder(*request.run);
  const fs::path run = request.run ? *request.run : create_numbered_run_folder("runs");
  describe_run(run, config, trainer.compute());
  say(hooks, fmt::format("training {} on {}, in {}{}", config.model, task->summary(), run.string(),
                         where(trainer.compute())));
  trainer.start(run);
  return finish(trainer, run, config, *task, hooks);
}

SessionResult go_on(const SessionRequest& request, const TrainingHooks& hooks) {
  if (!request.run)
    throw_error<InvalidArgument>("run: --resume has no folder, expected the one to go on with");
  const fs::path run = *request.run;
  const fs::path checkpoint = find_checkpoint(run, "last");
  if (checkpoint == run)
    throw_error<InvalidArgument>("run: {} is a checkpoint, expected the folder of a run",
                                 run.string());
  const json state = read_checkpoint_state(checkpoint);
  if (fs::exists(run / kSummaryFile) && state.value("progress", 0.0) >= 1) {
    if (!fs::exists(run / "report.html")) write_report(run);  // killed before it was written
    return {run, SessionEnd::kWasFinished};
  }
  RunConfig config = resumed_config(load_config(checkpoint), request.options);
  const std::unique_ptr<Task> task = make_task(&config);
  set_threads(config.recipe);
  Trainer trainer(config, *task, hooks);
  trainer.resume(run);
  say(hooks, fmt::format("going on with {} from step {}", run.string(), trainer.state().step));
  return finish(trainer, run, config, *task, hooks);
}

}  // namespace

SessionResult run_session(const SessionRequest& request, const TrainingHooks& hooks) {
  return request.resume ? go_on(request, hooks) : begin(request, hooks);
}

}  // namespace linescan
