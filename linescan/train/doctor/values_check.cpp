// Inputs, labels and parameters are finite and in a range that networks can work with.

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "linescan/train/doctor/checks.h"
#include "linescan/train/sequences.h"
#include "linescan/train/tensor_statistics.h"

namespace linescan {
namespace {

constexpr double kLarge = 1e3;  // normalised inputs and weights are around 1

Finding fail(const std::string& measured, const std::string& advice) {
  return {"values", Grade::kFail, measured, advice};
}

std::optional<Finding> look_at_inputs(const ExaminedBatch& examined, TensorStatistics* worst) {
  const at::Tensor& inputs = examined.batch.inputs;
  if (const int64_t bad = first_bad_sample(inputs); bad >= 0)
    return fail(fmt::format("the input of training example {} is not finite: {}",
                            examined.indices[bad], to_string(statistics_of(inputs[bad]))),
                "Mend or leave out that example; look for divisions by a spread of 0 where inputs "
                "are normalised.");
  const TensorStatistics now = statistics_of(inputs);
  const auto size = [](const TensorStatistics& s) { return std::max(std::abs(s.least), s.most); };
  if (worst->sizes.empty() || size(now) > size(*worst)) *worst = now;
  return std::nullopt;
}

std::optional<Finding> look_at_labels(const ExaminedBatch& examined, int64_t classes) {
  const at::Tensor& labels = examined.batch.labels;
  const at::Tensor bad =
      (labels.lt(0).logical_and(labels.ne(kNothingAsked)).logical_or(labels.ge(classes))).nonzero();
  if (bad.numel() == 0) return std::nullopt;
  const auto place = bad[0].item<int64_t>();
  const auto answers = labels.size(0) / static_cast<int64_t>(examined.indices.size());
  return fail(
      fmt::format("the label of training example {} is {}, expected 0 to {}",
                  examined.indices[place / answers], labels[place].item<int64_t>(), classes - 1),
      "Mend the labels, or give the network as many classes as there are.");
}

std::optional<Finding> look_at_parameters(const torch::nn::Module& network) {
  for (const auto& item : network.named_parameters()) {
    const TensorStatistics statistics = statistics_of(item.value());
    if (!statistics.finite())
      return fail(fmt::format("parameter {} is not finite: {}", item.key(), to_string(statistics)),
                  "Look at how it is initialised, or go back to an earlier checkpoint.");
  }
  return std::nullopt;
}

}  // namespace

Finding check_values(const Patient& patient) {
  TensorStatistics worst;
  int64_t examples = 0;
  for (const ExaminedBatch& examined : patient.batches()) {
    if (auto finding = look_at_inputs(examined, &worst)) return *finding;
    examples += static_cast<int64_t>(examined.indices.size());
  }
  const Network network = patient.fresh_network();
  if (auto finding = look_at_parameters(*network.module)) return *finding;
  const int64_t classes = [&] {
    const at::NoGradGuard no_grad;
    return patient.answer(network, patient.batches().front().batch).logits.size(-1);
  }();
  for (const ExaminedBatch& examined : patient.batches())
    if (auto finding = look_at_labels(examined, classes)) return *finding;

  const std::string measured = fmt::format(
      "{} {} with inputs {}; labels below {}; {} parameters finite", examples,
      patient.task().noun(), to_string(worst), classes, network.module->parameters().size());
  const bool tokens = !patient.batches().front().batch.inputs.is_floating_point();
  if (!tokens && std::max(std::abs(worst.least), worst.most) > kLarge)
    return {"values", Grade::kWarn, measured,
            "Normalise the inputs: networks expect a mean near 0 and a spread near 1."};
  if (!tokens && worst.least == worst.most)
    return {"values", Grade::kWarn, measured, "All inputs have the same value: look at the data."};
  return {"values", Grade::kPass, measured};
}

}  // namespace linescan
