#include "linescan/train/non_finite.h"

#include <fmt/format.h>

#include <algorithm>

#include "linescan/models/module_watch.h"
#include "linescan/train/tensor_statistics.h"

namespace linescan {
namespace {

int64_t bad_values(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() - at::isfinite(tensor).sum().item<int64_t>() : 0;
}

}  // namespace

std::string find_non_finite(torch::nn::Module& network, const at::Tensor& inputs,
                            const std::function<at::Tensor(const at::Tensor&)>& forward) {
  const at::NoGradGuard no_grad;
  const auto parameters = network.named_parameters().pairs();
  for (const auto& [name, parameter] : parameters)
    if (const int64_t bad = bad_values(parameter); bad > 0)
      return fmt::format("parameter {} has {} values that are not finite", name, bad);
  if (const int64_t sample = first_bad_sample(inputs); sample >= 0)
    return fmt::format("the input of sample {} of the batch is not finite: {}", sample,
                       to_string(statistics_of(inputs)));

  std::string finding;
  const ModuleWatch watch(seen_by([&](const std::string& name, const at::Tensor& output) {
    if (!finding.empty()) return;
    if (const int64_t bad = bad_values(output); bad > 0)
      finding = fmt::format("the first bad activation is {}, {} of whose {} values are not finite",
                            name, bad, sizes_text(output.sizes()));
  }));
  forward(inputs);
  if (!finding.empty()) return finding;

  const auto found = std::find_if(parameters.rbegin(), parameters.rend(), [](const auto& item) {
    return bad_values(item.second.grad()) > 0;
  });
  if (found != parameters.rend())
    return "the first bad gradient is that of parameter " + found->first;
  return "no parameter, activation or gradient is bad when the step is repeated";
}

}  // namespace linescan
