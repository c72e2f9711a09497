#include "linescan/train/trainer.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "linescan/base/activity.h"
#include "linescan/base/error.h"
#include "linescan/models/memory_errors.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/machine.h"
#include "linescan/train/schedule.h"
#include "linescan/version.h"

namespace linescan {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Steps that a GPU may be ahead of its readings: waiting for each would leave it idle while the next
// is prepared, and what a bad step has spoilt must be repeated.
constexpr std::size_t kMostStarted = 10;

// The generator is seeded before the weights are drawn, on the CPU, so the seed decides them on
// every device.
Network make_network(const Task& task, const RunConfig& config, const Compute& compute) {
  seed_generator(config.recipe.seed);
  Network network = task.make_network();
  if (compute.on_gpu()) {
    seed_generator(config.recipe.seed, compute.device);
    network.module->to(compute.device);
  }
  return network;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const Task& task, TrainingHooks hooks)
    : config_(config),
      compute_(open_compute(config.recipe.device, config.recipe.precision)),
      task_(task),
      hooks_(std::move(hooks)),
      sampler_(task.examples(), config.recipe.batch, config.recipe.seed),
      network_(make_network(task, config, compute_)),
      optimizer_(*network_.module, config.recipe),
      step_(config_.recipe, compute_, network_.forward, optimizer_, hooks_.message, network_.loss) {
  if (config.recipe.ema > 0) {
    const std::vector<uint8_t> generator = generator_state();  // its weights are not drawn, copied
    averaged_ = task.make_network();
    set_generator_state(generator);
    averaged_.module->to(compute_.device);
    average_.emplace(*network_.module, *averaged_.module);
  }
  gpu_probe_ = gpu_probe(compute_);
  state_.threads = at::get_num_threads();
  state_.instruction_set = instruction_sets();
  state_.device = describe(compute_);
  state_.precision = name_of(compute_.precision);
  state_.version = kVersion;
}

void Trainer::start(const fs::path& run) {
  run_ = run;
  metrics_.emplace(run_, state_.step);
  save();
}

void Trainer::resume(const fs::path& run) {
  run_ = run;
  const TrainingState here = state_;
  state_ = load_checkpoint(find_checkpoint(run, "last"),
                           {network_.module.get(), averaged_.module.get(), &optimizer_},
                           compute_.device);
  if (step_.loss_scale() && state_.loss_scale > 0)
    step_.loss_scale()->restore(state_.loss_scale, state_.loss_scale_steps);
  const bool same_device = state_.device == here.device && state_.precision == here.precision;
  if (!same_device && hooks_.message)
    hooks_.message(fmt::format(
        "warning: the run was made with {} on {}, this is {} on {}: roundings will differ",
        state_.precision, state_.device, here.precision, here.device));
  if (same_device && hooks_.message &&
      (state_.threads != here.threads || state_.instruction_set != here.instruction_set))
    hooks_.message(fmt::format(
        "warning: the run was made with {} threads on {}, this is {} threads on {}: results will "
        "differ in their last bits",
        state_.threads, state_.instruction_set, here.threads, here.instruction_set));
  state_.threads = here.threads;
  state_.instruction_set = here.instruction_set;
  state_.device = here.device;
  state_.precision = here.precision;
  state_.version = here.version;
  sampler_.seek(state_.sampler);
  clean_checkpoints(checkpoints(), state_.step);
  metrics_.emplace(run_, state_.step, state_.evaluation_due);
}

bool Trainer::run() {
  network_.module->train();
  start_watchdog();
  const struct Leash {  // however the run ends, nothing is left to be watched
    std::unique_ptr<Watchdog>& dog;
    ~Leash() { dog.reset(); }
  } leash{dog_};
  Clock::time_point last_save = Clock::now();
  while (state_.evaluation_due || !budget_spent()) {
    if (!state_.evaluation_due) {
      step();
      state_.evaluation_due = evaluation_falls_due();
      report_progress();
    }
    bool save_now = stopped() || seconds_since(last_save) > 60 * config_.recipe.save_minutes;
    if (state_.evaluation_due && !stopped()) {
      state_.evaluation_due = !evaluate_held_out();
      save_now = true;
    }
    if (save_now) {
      save();
      last_save = Clock::now();
    }
    if (stopped()) return false;
  }
  return true;
}

bool Trainer::stopped() const {
  return hooks_.stop_signal != nullptr && hooks_.stop_signal->load() != 0;
}

double Trainer::budget_progress() const {
  const Recipe& recipe = config_.recipe;
  if (recipe.epochs > 0)
    return static_cast<double>(state_.step) / (recipe.epochs * sampler_.batches_per_epoch());
  return state_.seconds / (60 * recipe.minutes);
}

bool Trainer::budget_spent() const { return state_.progress >= 1; }

bool Trainer::evaluation_falls_due() const {
  const bool epoch_ended = state_.sampler.batch == 0;
  return budget_spent() || (epoch_ended && state_.sampler.epoch % config_.recipe.eval_every == 0);
}

Batch Trainer::make_batch(const Started& batch) const {
  return task_.batch(batch.indices, batch.epoch, compute_);
}

void Trainer::step() {
  const Clock::time_point start = Clock::now();
  // On a GPU what is watched goes from reading to reading: between them nothing waits.
  if (dog_ && started_.empty()) dog_->begin("step", state_.step + 1);
  const Recipe& recipe = config_.recipe;
  const int64_t epoch = sampler_.position().epoch;
  const std::span<const int64_t> indices = sampler_.next();
  const Started& batch =
      started_.emplace_back(Started{.indices = {indices.begin(), indices.end()}, .epoch = epoch});
  const double lr = latest_lr_ = learning_rate(recipe, state_.progress);
  run_step(batch, lr);
  // On a GPU the average follows a bad step too, until it is read: nothing is saved before that.
  if (average_) average_->update(ema_decay(recipe, state_.step));

  if (!std::exchange(checked_, true)) check_first_step();
  ++state_.step;
  state_.sampler = sampler_.position();
  const double seconds = seconds_since(start);
  state_.interval.seconds += seconds;
  state_.seconds += seconds;
  state_.progress = budget_progress();
  const int64_t unlogged = state_.interval.steps + static_cast<int64_t>(started_.size());
  if (!compute_.on_gpu() || started_.size() >= kMostStarted || unlogged >= recipe.log_every ||
      evaluation_falls_due())
    settle();
  if (state_.interval.steps >= recipe.log_every || budget_spent()) log_interval(epoch, lr);
}

void Trainer::run_step(const Started& batch, double lr) {
  try {
    const Batch examples = [&] {
      const ModuleRunning module("batch");
      return make_batch(batch);
    }();
    step_.run(examples.inputs, examples.labels, lr);
  } catch (const NotFinite& error) {  // of detect_anomaly
    throw_error<NotFinite>("train: step {}: {}; the last good checkpoint is {}", state_.step + 1,
                           error.what(), find_checkpoint(run_, "last").string());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) report_out_of_memory(error);
    throw;
  }
  if (step_.graph_kept() && hooks_.message && !std::exchange(graph_reported_, true))
    hooks_.message(
        fmt::format("warning: step {}: the graph of the step before is still alive: something "
                    "keeps its loss or logits, and memory grows with every step",
                    state_.step + 1));
}

// Waits for the steps that have been started, and takes over what they came to.
void Trainer::settle() {
  if (started_.empty()) return;
  const Clock::time_point start = Clock::now();
  const TrainingStep::Reading reading = step_.read();
  if (reading.good_steps < static_cast<int64_t>(started_.size()))
    report_non_finite(reading.good_steps, reading);
  TrainingState::Interval& interval = state_.interval;
  interval.steps += reading.good_steps;
  interval.loss += reading.loss_sum;
  interval.correct += reading.correct;
  latest_norm_ = reading.norm;
  started_.clear();
  if (dog_) dog_->remember({state_.step, reading.loss, reading.norm, latest_lr_});
  stop_watching();
  const double seconds = seconds_since(start);
  interval.seconds += seconds;
  state_.seconds += seconds;
  state_.progress = budget_progress();
}

// `which` of the started steps was the first bad one.
void Trainer::report_non_finite(std::size_t which, const TrainingStep::Reading& reading) {
  const auto [inputs, labels] = make_batch(started_[which]);
  // The gradients in place are those of the last step.
  if (which + 1 < started_.size()) step_.repeat(inputs, labels);
  throw_error<NotFinite>(
      "train: step {} has loss {} and gradient norm {}: {}; the last good checkpoint is {}",
      state_.step - static_cast<int64_t>(started_.size() - which) + 1, reading.loss, reading.norm,
      task_.find_non_finite(network_, to_device(inputs, compute_)),
      find_checkpoint(run_, "last").string());
}

void Trainer::log_interval(int64_t epoch, double lr) {
  const auto [steps, correct, loss, seconds] = std::exchange(state_.interval, {});
  const auto examples = static_cast<double>(steps * config_.recipe.batch);
  TrainMetrics metrics = {.step = state_.step,
                          .epoch = epoch,
                          .loss = loss / steps,
                          .accuracy = correct / (examples * task_.answers()),
                          .lr = lr,
                          .images_per_s = examples / seconds,
                          .grad_norm = latest_norm_,
                          .seconds = state_.seconds,
                          .memory_bytes = {}};
  if (config_.recipe.log_memory) metrics.memory_bytes = memory_in_use(compute_);
  facts_.loss = metrics.loss;
  facts_.accuracy = metrics.accuracy;
  facts_.images_per_s = metrics.images_per_s;
  metrics_->write(metrics);
}

// False if a signal cut it off.
bool Trainer::evaluate_held_out() {
  const auto stop = [this] {  // asked before every batch
    stop_watching();
    if (dog_) dog_->begin("evaluation after step", state_.step, Watchdog::Work::kOther);
    return stopped();
  };
  const EvaluationSettings settings = {.batch = config_.recipe.batch,
                                       .stop = stop,
                                       .compute = compute_,
                                       .graph = config_.recipe.graph};
  const auto plain = task_.evaluate(network_, Split::kHeldOut, settings);
  std::optional<Evaluation> averaged;
  if (plain && average_) averaged = task_.evaluate(averaged_, Split::kHeldOut, settings);
  stop_watching();
  if (!plain || (average_ && !averaged)) return false;

  HeldOutMetrics metrics = {.step = state_.step,
                            .epoch = state_.sampler.epoch,
                            .seconds = state_.seconds,
                            .loss = plain->loss,
                            .top1 = plain->top1,
                            .top5 = plain->top5,
                            .ema_top1 = {}};
  if (averaged) metrics.ema_top1 = averaged->top1;
  state_.use_average = averaged && averaged->top1 >= plain->top1;
  const double top1 = state_.use_average ? averaged->top1 : plain->top1;
  if (top1 > state_.best_top1) {
    state_.best_top1 = top1;
    state_.best_step = state_.step;
  }
  metrics_->write(metrics);
  facts_.val_accuracy = top1;
  report_progress();
  return true;
}

void Trainer::save() {
  settle();
  if (dog_) dog_->begin("checkpoint of step", state_.step, Watchdog::Work::kSlow);
  const fs::path folder = checkpoints();
  state_.rng = generator_state();
  if (compute_.on_gpu()) state_.device_rng = generator_state(compute_.device);
  if (const std::optional<LossScale>& scale = step_.loss_scale()) {
    state_.loss_scale = scale->value();
    state_.loss_scale_steps = scale->good_updates();
  }
  // A checkpoint of this step exists if a signal came during its evaluation; it never changes.
  if (!fs::exists(checkpoint_path(folder, state_.step)))
    save_checkpoint(folder, {network_.module.get(), averaged_.module.get(), &optimizer_}, state_,
                    config_, task_.describe());
  link_checkpoint(folder, "last", state_.step);
  if (state_.best_step == state_.step) link_checkpoint(folder, "best", state_.step);
  prune_checkpoints(folder, config_.recipe.keep);
  stop_watching();
}

void Trainer::report_progress() const {
  if (!hooks_.progress) return;
  ProgressFacts facts = facts_;
  facts.examples = task_.noun();
  facts.fraction = std::min(1.0, state_.progress);
  facts.seconds = state_.seconds;
  facts.step = state_.step;
  facts.epoch = state_.sampler.epoch;
  hooks_.progress(facts);
}

}  // namespace linescan
