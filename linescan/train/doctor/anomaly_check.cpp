// Anomaly mode on the first batch: every module's output, and the gradient that comes back to it.

#include <fmt/format.h>
#include <torch/torch.h>

#include "linescan/base/error.h"
#include "linescan/models/module_watch.h"
#include "linescan/train/anomaly.h"
#include "linescan/train/doctor/checks.h"
#include "linescan/train/tensor_statistics.h"

namespace linescan {
namespace {

constexpr double kHalfLimit = 65504;  // the largest number of float16

}  // namespace

Finding check_anomaly(const Patient& patient) {
  const Network network = patient.fresh_network();
  int64_t modules = 0;
  double largest = 0;
  std::string where;
  const ModuleWatch detect(detect_anomalies());
  const ModuleWatch measure(seen_by([&](const std::string& name, const at::Tensor& output) {
    ++modules;
    const at::NoGradGuard no_grad;
    const double size = output.numel() > 0 ? output.abs().max().item<double>() : 0;
    if (size > largest) {
      largest = size;
      where = name;
    }
  }));
  try {
    const at::Tensor loss = patient.answer(network, patient.batches().front().batch).loss;
    TrainingStep::expect_trainable(loss);
    loss.backward();
  } catch (const NotFinite& error) {
    return {"anomaly", Grade::kFail, error.what(),
            "That module is the first: look at divisions, roots and logarithms in it, and at the "
            "size of what it is given."};
  }
  const std::string measured =
      fmt::format("{} modules, forward and backward finite; the largest output is {:.3g}, of {}",
                  modules, largest, where);
  if (patient.compute().precision == Precision::kFp16 && largest > kHalfLimit / 8)
    return {
        "anomaly", Grade::kWarn, measured,
        fmt::format("float16 ends at {:.0f}: use bf16, or a norm before that module.", kHalfLimit)};
  return {"anomaly", Grade::kPass, measured};
}

}  // namespace linescan
