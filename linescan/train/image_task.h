// Naming what is on images: a network of any kind and a labelled data set.
#pragma once

#include "linescan/train/batch.h"
#include "linescan/train/dataset.h"
#include "linescan/train/task.h"

namespace linescan {

class ImageTask : public Task {
 public:
  // `config` must be complete (fit_to_data) and valid.
  ImageTask(const RunConfig& config, Dataset data);

  Network make_network() const override;
  std::string_view noun() const override { return "images"; }
  int64_t examples() const override { return data_.train.count; }
  int64_t answers() const override { return 1; }
  Batch batch(std::span<const int64_t> indices, int64_t epoch,
              const Compute& compute) const override;
  std::optional<Evaluation> evaluate(Network& network, Split split,
                                     const EvaluationSettings& settings) const override;
  nlohmann::json document(const Evaluation& evaluation) const override;
  std::string find_non_finite(Network& network, const at::Tensor& inputs) const override;
  nlohmann::json describe() const override;
  std::string summary() const override;

 private:
  RunConfig config_;
  Dataset data_;
  BatchAssembler assembler_;
};

}  // namespace linescan
