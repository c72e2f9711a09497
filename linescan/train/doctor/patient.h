// What the training doctor examines: a configuration with its task, the batches that training would
// see first, and fresh networks as training would begin with.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "linescan/train/optimizer.h"
#include "linescan/train/task.h"
#include "linescan/train/training_step.h"

namespace linescan {

// A batch, and which examples of the data it is made of.
struct ExaminedBatch {
  std::vector<int64_t> indices;
  Batch batch;
};

struct Examination {
  int64_t steps = 6;                      // batches that are looked at, and steps of every trial
  std::filesystem::path folder = ".";     // where checkpoints would go
  std::filesystem::path checkpoint = {};  // whose weights networks begin with; empty: the seed's
};

class Patient {
 public:
  // `task` must outlive the patient. Makes the batches, and calls `beat` before each. Throws as
  // open_compute(), Sampler and Task do.
  Patient(const RunConfig& config, const Task& task, Examination examination,
          const std::function<void()>& beat = {});

  const Recipe& recipe() const { return recipe_; }
  const Compute& compute() const { return compute_; }
  const Task& task() const { return task_; }
  const std::vector<ExaminedBatch>& batches() const { return batches_; }
  int64_t wanted_batches() const { return examination_.steps; }  // the data may have fewer
  const std::filesystem::path& folder() const { return examination_.folder; }
  double seconds_a_batch() const { return seconds_a_batch_; }  // that making one has taken

  // In training mode on the device, as training would begin or go on with. Throws as
  // load_trained_weights() does.
  Network fresh_network() const;

  // Logits [answers, classes] and loss [] of a network on a batch, as a training step computes them.
  struct Answer {
    at::Tensor logits, loss;
  };
  Answer answer(const Network& network, const Batch& batch) const;

 private:
  Recipe recipe_;
  Compute compute_;
  const Task& task_;
  Examination examination_;
  std::vector<ExaminedBatch> batches_;
  double seconds_a_batch_ = 0;
};

// A network that is trained for some steps at the recipe's full learning rate, or `lr`.
class Trial {
 public:
  explicit Trial(const Patient& patient, std::optional<double> lr = {});

  // Step `number` on that batch. Throws what the step throws.
  TrainingStep::Reading run(int64_t number);

  Network& network() { return network_; }
  bool graph_kept() const { return step_.graph_kept(); }

 private:
  const Patient& patient_;
  double lr_;
  Network network_;
  AdamW optimizer_;
  Recipe recipe_;
  TrainingStep step_;
};

}  // namespace linescan
