// The loss is one number, a backward pass can start from it, and an untrained network does not do
// much worse than one that gives every class the same chance.

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "linescan/base/error.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/tensor_statistics.h"

namespace linescan {
namespace {

constexpr double kTimesChance = 3;

}  // namespace

Finding check_loss(const Patient& patient) {
  const Network network = patient.fresh_network();
  const Batch& batch = patient.batches().front().batch;
  const auto [logits, loss] = patient.answer(network, batch);
  if (logits.dim() != 2 || logits.size(0) != batch.labels.size(0))
    return {"loss", Grade::kFail,
            fmt::format("logits have shape {} for {} labels", sizes_text(logits.sizes()),
                        batch.labels.size(0)),
            "Let the network give [answers, classes], a row for every label."};
  try {
    TrainingStep::expect_trainable(loss);
  } catch (const Error& error) {
    return {"loss", Grade::kFail, error.what(),
            "Reduce the loss to one number that depends on the parameters: no detach(), no item(), "
            "no NoGradGuard on the way."};
  }
  const double value = loss.item<double>(), chance = std::log(static_cast<double>(logits.size(1)));
  const std::string measured = fmt::format(
      "{:.4g} at the start; guessing among {} classes costs {:.4g}", value, logits.size(1), chance);
  if (!std::isfinite(value))
    return {"loss", Grade::kFail, measured,
            "The checks 'values' and 'anomaly' say where it comes from."};
  if (value > kTimesChance * chance)
    return {"loss", Grade::kWarn, measured,
            "The first logits are too large: look at the initial weights, the scale of the inputs "
            "and the last layer."};
  return {"loss", Grade::kPass, measured};
}

}  // namespace linescan
