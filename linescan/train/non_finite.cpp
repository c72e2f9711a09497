#include "linescan/train/non_finite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace linescan {
namespace {

int64_t bad_values(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() - at::isfinite(tensor).sum().item<int64_t>() : 0;
}

std::string find_bad_activation(const std::function<void(const PartObserver&)>& run) {
  std::string finding;
  run([&](const std::string& part, const at::Tensor& output) {
    if (!finding.empty()) return;
    if (const int64_t bad = bad_values(output); bad > 0)
      finding =
          fmt::format("the first bad activation is {}, {} of whose [{}] values are not finite",
                      part, bad, fmt::join(output.sizes(), ", "));
  });
  return finding;
}

}  // namespace

std::string find_non_finite(VMamba& network, const at::Tensor& input) {
  return find_non_finite(*network,
                         [&](const PartObserver& observe) { network->forward(input, observe); });
}

std::string find_non_finite(torch::nn::Module& network,
                            const std::function<void(const PartObserver&)>& run) {
  const at::NoGradGuard no_grad;
  const auto parameters = network.named_parameters().pairs();
  for (const auto& [name, parameter] : parameters)
    if (const int64_t bad = bad_values(parameter); bad > 0)
      return fmt::format("parameter {} has {} values that are not finite", name, bad);
  if (std::string finding = find_bad_activation(run); !finding.empty()) return finding;
  const auto found = std::find_if(parameters.rbegin(), parameters.rend(), [](const auto& item) {
    return bad_values(item.second.grad()) > 0;
  });
  if (found != parameters.rend())
    return "the first bad gradient is that of parameter " + found->first;
  return "no parameter, activation or gradient is bad when the step is repeated";
}

}  // namespace linescan
