#include "linescan/train/doctor/patient.h"

#include <chrono>

#include "linescan/base/activity.h"
#include "linescan/train/checkpoint.h"
#include "linescan/train/sampler.h"

namespace linescan {
namespace {

// As the recipe has it, but every kernel on its own, because a recorded step hides what the checks look
// for; and anomalies are looked for by a check of their own.
Recipe plain(Recipe recipe) {
  recipe.graph = false;
  recipe.detect_anomaly = false;
  return recipe;
}

}  // namespace

Patient::Patient(const RunConfig& config, const Task& task, Examination examination,
                 const std::function<void()>& beat)
    : recipe_(config.recipe),
      compute_(open_compute(config.recipe.device, config.recipe.precision)),
      task_(task),
      examination_(std::move(examination)) {
  Sampler sampler(task.examples(), recipe_.batch, recipe_.seed);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < std::min(examination_.steps, sampler.batches_per_epoch()); ++i) {
    if (beat) beat();
    const ModuleRunning module("batch");
    const std::span<const int64_t> indices = sampler.next();
    batches_.push_back({{indices.begin(), indices.end()}, task.batch(indices, 0, compute_)});
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  seconds_a_batch_ = seconds.count() / static_cast<double>(batches_.size());
}

Network Patient::fresh_network() const {
  seed_generator(recipe().seed);
  Network network = task_.make_network();
  if (!examination_.checkpoint.empty())
    load_trained_weights(examination_.checkpoint, *network.module);
  network.module->to(compute_.device);
  network.module->train();
  return network;
}

Patient::Answer Patient::answer(const Network& network, const Batch& batch) const {
  Answer answer;
  {
    const ComputeScope scope(compute_);
    answer.logits = network.forward(to_device(batch.inputs, compute_)).to(at::kFloat);
  }
  const Loss loss = network.loss ? network.loss : TrainingStep::cross_entropy(recipe());
  answer.loss = loss(answer.logits, to_device(batch.labels, compute_));
  return answer;
}

Trial::Trial(const Patient& patient, std::optional<double> lr)
    : patient_(patient),
      lr_(lr.value_or(patient.recipe().lr)),
      network_(patient.fresh_network()),
      optimizer_(*network_.module, patient.recipe()),
      recipe_(plain(patient.recipe())),
      step_(recipe_, patient.compute(), network_.forward, optimizer_, {}, network_.loss) {}

TrainingStep::Reading Trial::run(int64_t number) {
  const Batch& batch = patient_.batches().at(number).batch;
  step_.run(batch.inputs, batch.labels, lr_);
  return step_.read();
}

}  // namespace linescan
