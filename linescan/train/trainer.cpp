#include "linescan/train/trainer.h"

#include <ATen/Parallel.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/checkpoint_folder.h"
#include "linescan/train/evaluate.h"
#include "linescan/train/machine.h"
#include "linescan/train/non_finite.h"
#include "linescan/train/schedule.h"
#include "linescan/version.h"

namespace linescan {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The generator is seeded before the weights are drawn, so the seed decides them.
VMamba make_network(const RunConfig& config) {
  seed_generator(config.recipe.seed);
  return VMamba(config.network);
}

at::Tensor gather_labels(const ImageSet& images, std::span<const int64_t> indices) {
  at::Tensor labels = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  int64_t* out = labels.mutable_data_ptr<int64_t>();
  for (int64_t index : indices) *out++ = images.labels[index];
  return labels;
}

}  // namespace

Trainer::Trainer(const RunConfig& config, const Dataset& data, TrainingHooks hooks)
    : config_(config),
      data_(data),
      hooks_(std::move(hooks)),
      sampler_(data.train.count, config.recipe.batch, config.recipe.seed),
      assembler_(data.normalisation),
      network_(make_network(config)),
      optimizer_(*network_, config.recipe) {
  if (config.recipe.ema > 0) {
    const std::vector<uint8_t> generator = generator_state();  // its weights are not drawn, copied
    averaged_ = VMamba(config.network);
    set_generator_state(generator);
    average_.emplace(*network_, *averaged_);
  }
  state_.threads = at::get_num_threads();
  state_.instruction_set = instruction_sets();
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
  state_ =
      load_checkpoint(find_checkpoint(run, "last"), {network_.get(), averaged_.get(), &optimizer_});
  if ((state_.threads != here.threads || state_.instruction_set != here.instruction_set) &&
      hooks_.message)
    hooks_.message(fmt::format(
        "warning: the run was made with {} threads on {}, this is {} threads on {}: results will "
        "differ in their last bits",
        state_.threads, state_.instruction_set, here.threads, here.instruction_set));
  state_.threads = here.threads;
  state_.instruction_set = here.instruction_set;
  state_.version = here.version;
  sampler_.seek(state_.sampler);
  clean_checkpoints(checkpoints(), state_.step);
  metrics_.emplace(run_, state_.step, state_.evaluation_due);
}

bool Trainer::run() {
  network_->train();
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

at::Tensor Trainer::make_batch(std::span<const int64_t> indices, int64_t epoch) const {
  const ImageSet& images = data_.train;
  const Recipe& recipe = config_.recipe;
  const at::Tensor batch = at::empty(
      {static_cast<int64_t>(indices.size()), images.channels, images.height, images.width});
  assembler_.augmented(images, indices, {recipe.flip, recipe.shift}, recipe.seed, epoch,
                       batch.mutable_data_ptr<float>());
  return batch;
}

void Trainer::step() {
  const Clock::time_point start = Clock::now();
  const Recipe& recipe = config_.recipe;
  const int64_t epoch = sampler_.position().epoch;
  const std::span<const int64_t> indices = sampler_.next();
  const at::Tensor input = make_batch(indices, epoch);
  const at::Tensor labels = gather_labels(data_.train, indices);
  const double lr = learning_rate(recipe, state_.progress);

  optimizer_.clear_gradients();
  const at::Tensor logits = network_->forward(input);  // [batch, classes]
  const at::Tensor loss = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Mean,
                                                 /*ignore_index=*/-100, recipe.label_smoothing);
  loss.backward();
  const double loss_value = loss.item<double>();
  const double norm = optimizer_.clip_gradients();
  if (!std::isfinite(loss_value) || !std::isfinite(norm))
    report_non_finite(input, loss_value, norm);
  optimizer_.step(lr);
  if (average_) average_->update(ema_decay(recipe, state_.step));

  TrainingState::Interval& interval = state_.interval;
  ++interval.steps;
  interval.loss += loss_value;
  interval.correct += logits.detach().argmax(1).eq(labels).sum().item<int64_t>();
  const double seconds = seconds_since(start);
  interval.seconds += seconds;
  ++state_.step;
  state_.seconds += seconds;
  state_.sampler = sampler_.position();
  state_.progress = budget_progress();
  if (interval.steps >= recipe.log_every || budget_spent()) log_interval(epoch, lr, norm);
}

void Trainer::report_non_finite(const at::Tensor& input, double loss, double norm) {
  throw_error<NotFinite>(
      "train: step {} has loss {} and gradient norm {}: {}; the last good checkpoint is {}",
      state_.step + 1, loss, norm, find_non_finite(network_, input),
      find_checkpoint(run_, "last").string());
}

void Trainer::log_interval(int64_t epoch, double lr, double norm) {
  const auto [steps, correct, loss, seconds] = std::exchange(state_.interval, {});
  const double images = static_cast<double>(steps * config_.recipe.batch);
  const TrainMetrics metrics = {.step = state_.step,
                                .epoch = epoch,
                                .loss = loss / steps,
                                .accuracy = correct / images,
                                .lr = lr,
                                .images_per_s = images / seconds,
                                .grad_norm = norm,
                                .seconds = state_.seconds};
  facts_.loss = metrics.loss;
  facts_.accuracy = metrics.accuracy;
  facts_.images_per_s = metrics.images_per_s;
  metrics_->write(metrics);
}

// False if a signal cut it off.
bool Trainer::evaluate_held_out() {
  const EvaluationSettings settings = {.batch = config_.recipe.batch,
                                       .stop = [this] { return stopped(); }};
  const auto plain = evaluate(network_, data_.held_out, assembler_, settings);
  std::optional<Evaluation> averaged;
  if (plain && average_) averaged = evaluate(averaged_, data_.held_out, assembler_, settings);
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
  const fs::path folder = checkpoints();
  state_.rng = generator_state();
  // A checkpoint of this step exists if a signal came during its evaluation; it never changes.
  if (!fs::exists(checkpoint_path(folder, state_.step)))
    save_checkpoint(folder, {network_.get(), averaged_.get(), &optimizer_}, state_, config_, data_);
  link_checkpoint(folder, "last", state_.step);
  if (state_.best_step == state_.step) link_checkpoint(folder, "best", state_.step);
  prune_checkpoints(folder, config_.recipe.keep);
}

void Trainer::report_progress() const {
  if (!hooks_.progress) return;
  ProgressFacts facts = facts_;
  facts.fraction = std::min(1.0, state_.progress);
  facts.seconds = state_.seconds;
  facts.step = state_.step;
  facts.epoch = state_.sampler.epoch;
  hooks_.progress(facts);
}

}  // namespace linescan
