// What a run trains for: a network, where its batches come from, and how well it does. The loop
// (trainer.h), the checkpoints and the report know nothing else about it.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "linescan/models/compute.h"
#include "linescan/train/config.h"
#include "linescan/train/evaluate.h"

namespace linescan {

// inputs [batch, ...] -> logits [answers, classes]
using Forward = std::function<at::Tensor(const at::Tensor& inputs)>;

// logits [answers, classes], labels [answers] -> the loss [] that is made smaller
using Loss = std::function<at::Tensor(const at::Tensor& logits, const at::Tensor& labels)>;

struct Network {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;  // of that module
  Loss loss = {};   // empty: cross entropy, as the recipe says
};

// On the CPU, where the device of a Compute reads them without another copy.
struct Batch {
  at::Tensor inputs;
  at::Tensor labels;  // [answers] int64; kNothingAsked (sequences.h) where nothing is
};

// Examples that choose the best checkpoint, and those that choose nothing.
enum class Split { kHeldOut, kTest };

class Task {
 public:
  virtual ~Task() = default;

  // In training mode, on the CPU, drawn from PyTorch's generator.
  virtual Network make_network() const = 0;

  // What examples are called: "images".
  virtual std::string_view noun() const = 0;
  // Training examples of an epoch, and the answers asked for in each.
  virtual int64_t examples() const = 0;
  virtual int64_t answers() const = 0;
  // Training examples `indices` of an epoch: a function of the recipe's seed, the epoch and the number.
  virtual Batch batch(std::span<const int64_t> indices, int64_t epoch,
                      const Compute& compute) const = 0;

  // Runs the network in evaluation mode; empty if settings.stop said so.
  virtual std::optional<Evaluation> evaluate(Network& network, Split split,
                                             const EvaluationSettings& settings) const = 0;
  // evaluation.json of a run, for the test examples.
  virtual nlohmann::json document(const Evaluation& evaluation) const = 0;

  // Where a NaN or an infinity comes from (non_finite.h).
  virtual std::string find_non_finite(Network& network, const at::Tensor& inputs) const = 0;

  // What a checkpoint says about the data.
  virtual nlohmann::json describe() const = 0;
  // For a message: "55000 images of fashion-mnist, 5000 held out".
  virtual std::string summary() const = 0;
};

// The task of a configuration. Its data are read; with `assignments` those options of the network that
// nobody assigned are set to what the data need. Throws InvalidArgument as the data and networks do.
std::unique_ptr<Task> make_task(RunConfig* config, const Assignments* assignments = nullptr);

}  // namespace linescan
