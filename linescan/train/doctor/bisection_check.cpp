// A step on two examples with the network cut off behind a module: the first module with which it fails.
// A step that fails with the modules up to some one fails with all later ones too, so the search halves.

#include <fmt/format.h>
#include <torch/torch.h>

#include "linescan/models/module_watch.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/first_line.h"
#include "linescan/train/tensor_statistics.h"

namespace linescan {
namespace {

constexpr int64_t kExamples = 2;

// Thrown behind the last module that takes part.
struct Reached {
  at::Tensor output;
};

struct Cut {
  std::string last;     // the module behind which the network ends
  std::string failure;  // empty: forward and backward are good
  bool whole = false;   // the forward pass came to its end
};

// A step with the first `modules` modules, counted as they end; all of them with the task's loss.
Cut run_cut(const Patient& patient, std::size_t modules, std::size_t* seen) {
  const Network network = patient.fresh_network();
  Batch batch = patient.batches().front().batch;
  const int64_t examples = std::min(kExamples, batch.inputs.size(0));
  const int64_t answers = batch.labels.size(0) / batch.inputs.size(0);
  batch = {batch.inputs.narrow(0, 0, examples), batch.labels.narrow(0, 0, examples * answers)};

  Cut cut;
  *seen = 0;
  const ModuleWatch stop([&](const std::string& name, at::Tensor output) {
    cut.last = name;
    if (++*seen == modules) throw Reached{output};
    return output;
  });
  try {
    at::Tensor loss;
    try {
      loss = patient.answer(network, batch).loss;
      cut.whole = true;
      TrainingStep::expect_trainable(loss);
    } catch (const Reached& reached) {
      loss = reached.output.to(at::kFloat).square().mean();
    }
    if (!all_finite(loss)) {
      cut.failure = "the result is not finite";
      return cut;
    }
    if (loss.requires_grad()) loss.backward();
  } catch (const std::exception& error) {
    cut.failure = first_line(error);
    if (!failed_module().empty()) cut.last = failed_module();
    return cut;
  }
  for (const auto& item : network.module->named_parameters())
    if (!all_finite(item.value().grad())) {
      cut.failure = "the gradient of " + item.key() + " is not finite";
      return cut;
    }
  return cut;
}

}  // namespace

Finding check_bisection(const Patient& patient) {
  std::size_t all = 0, ignored = 0;
  const Cut whole = run_cut(patient, 0, &all);  // 0: no cut
  if (whole.failure.empty())
    return {"bisection", Grade::kPass,
            fmt::format("a step through all {} modules is good, nothing to search", all)};
  // The first `good` modules work, the first `bad` do not; all + 1 stands for the loss as well.
  std::size_t good = 0, bad = all + 1;
  Cut worst = whole, best;
  while (bad - good > 1) {
    const std::size_t middle = good + (bad - good) / 2;
    const Cut cut = run_cut(patient, middle, &ignored);
    if (cut.failure.empty()) {
      good = middle;
      best = cut;
    } else {
      bad = middle;
      worst = cut;
    }
  }
  const std::string culprit = bad == all + 1 && worst.whole ? "the loss" : worst.last;
  const std::string before =
      good == 0 ? "nothing before it" : "up to " + best.last + " all is well";
  return {"bisection", Grade::kFail,
          fmt::format("a step fails first with {}: {}; {}", culprit, worst.failure, before),
          "Look into that module; run it alone on the output of the one before it."};
}

}  // namespace linescan
