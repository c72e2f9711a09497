// Saying which token comes next in synthetic sequences (sequences.h): a language model, fresh sequences
// every epoch, and fixed ones to be judged by.
#pragma once

#include <filesystem>

#include "linescan/models/networks/language_model.h"
#include "linescan/train/sequences.h"
#include "linescan/train/task.h"

namespace linescan {

class SequenceTask : public Task {
 public:
  explicit SequenceTask(const RunConfig& config) : config_(config) {}

  Network make_network() const override;
  std::string_view noun() const override { return "sequences"; }
  int64_t examples() const override;
  int64_t answers() const override { return config_.sequences.items; }
  Batch batch(std::span<const int64_t> indices, int64_t epoch,
              const Compute& compute) const override;
  std::optional<Evaluation> evaluate(Network& network, Split split,
                                     const EvaluationSettings& settings) const override;
  nlohmann::json document(const Evaluation& evaluation) const override;
  std::string find_non_finite(Network& network, const at::Tensor& inputs) const override;
  nlohmann::json describe() const override;
  std::string summary() const override;

  // Test sequence `number`; there is no end of them, evaluate() takes the first ones.
  TokenSequence test_sequence(int64_t number) const;

 private:
  RunConfig config_;
};

// The language model of a run's checkpoint, in evaluation mode. Throws InvalidArgument naming what is
// missing or damaged, and for a run that was trained on images.
LanguageModel load_language_model(const std::filesystem::path& checkpoint, const RunConfig& config,
                                  at::Device device = at::kCPU);

}  // namespace linescan
