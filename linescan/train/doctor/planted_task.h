// A task with a fault in it: everything as in the task below, but for what the fault changes.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

#include "linescan/train/task.h"

namespace linescan {

// What a fault changes; empty functions change nothing.
struct Poison {
  Loss loss = {};  // instead of the task's
  std::function<void(std::span<const int64_t> indices, Batch&)> batch = {};  // after it is made
};

class PlantedTask : public Task {
 public:
  // `task` must outlive the object.
  PlantedTask(const Task& task, Poison poison) : task_(task), poison_(std::move(poison)) {}

  Network make_network() const override {
    Network network = task_.make_network();
    if (poison_.loss) network.loss = poison_.loss;
    return network;
  }
  Batch batch(std::span<const int64_t> indices, int64_t epoch,
              const Compute& compute) const override {
    Batch made = task_.batch(indices, epoch, compute);
    if (poison_.batch) poison_.batch(indices, made);
    return made;
  }

  std::string_view noun() const override { return task_.noun(); }
  int64_t examples() const override { return task_.examples(); }
  int64_t answers() const override { return task_.answers(); }
  std::optional<Evaluation> evaluate(Network& network, Split split,
                                     const EvaluationSettings& settings) const override {
    return task_.evaluate(network, split, settings);
  }
  nlohmann::json document(const Evaluation& evaluation) const override {
    return task_.document(evaluation);
  }
  std::string find_non_finite(Network& network, const at::Tensor& inputs) const override {
    return task_.find_non_finite(network, inputs);
  }
  nlohmann::json describe() const override { return task_.describe(); }
  std::string summary() const override { return task_.summary(); }

 private:
  const Task& task_;
  Poison poison_;
};

}  // namespace linescan
