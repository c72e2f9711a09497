// A backward pass gives every parameter a gradient, and not only zeros.

#include <fmt/format.h>
#include <torch/torch.h>

#include "linescan/train/doctor/checks.h"
#include "linescan/train/unused.h"

namespace linescan {
namespace {

std::vector<std::string> with_zero_gradients(const torch::nn::Module& network) {
  std::vector<std::string> names;
  for (const auto& item : network.named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    if (gradient.defined() && gradient.count_nonzero().item<int64_t>() == 0)
      names.push_back(item.key());
  }
  return names;
}

}  // namespace

Finding check_reach(const Patient& patient) {
  const Network network = patient.fresh_network();
  const at::Tensor loss = patient.answer(network, patient.batches().front().batch).loss;
  TrainingStep::expect_trainable(loss);
  loss.backward();
  const std::size_t all = network.module->parameters().size();
  const std::vector<std::string> unused = unused_parameters(*network.module);
  if (!unused.empty())
    return {"reach", Grade::kFail,
            fmt::format("{} of {} parameters receive no gradient: {}", unused.size(), all,
                        name_some(unused)),
            "They keep their initial values. Look for detach() or a NoGradGuard behind them, for a "
            "module that forward() does not call, or freeze them on purpose with "
            "requires_grad_(false).",
            unused};
  const std::vector<std::string> zero = with_zero_gradients(*network.module);
  if (!zero.empty())
    return {"reach", Grade::kWarn,
            fmt::format("{} of {} parameters have gradients of nothing but zeros: {}", zero.size(),
                        all, name_some(zero)),
            "Harmless behind a dropped path; else look for a factor of 0 or dead activations.",
            zero};
  return {"reach", Grade::kPass, fmt::format("all {} parameters receive a gradient", all)};
}

}  // namespace linescan
