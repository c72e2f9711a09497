#include "linescan/train/tensor_statistics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include "linescan/binding/tensors.h"

namespace linescan {

TensorStatistics statistics_of(const at::Tensor& tensor) {
  TensorStatistics statistics;
  if (!tensor.defined()) return statistics;
  const at::NoGradGuard no_grad;
  statistics.sizes = tensor.sizes().vec();
  const std::optional<DType> type = dtype_of(tensor.scalar_type());
  statistics.type = type ? name_of(*type) : c10::toString(tensor.scalar_type());
  const at::Tensor values = tensor.detach().to(at::kDouble);
  statistics.nans = values.isnan().sum().item<int64_t>();
  statistics.infinities = values.isinf().sum().item<int64_t>();
  const at::Tensor finite =
      statistics.finite() ? values : values.masked_select(at::isfinite(values));
  if (finite.numel() == 0) return statistics;
  statistics.least = finite.min().item<double>();
  statistics.most = finite.max().item<double>();
  statistics.mean = finite.mean().item<double>();
  return statistics;
}

bool all_finite(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return !tensor.defined() || at::isfinite(tensor).all().item<bool>();
}

int64_t first_bad_sample(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor bad = at::isfinite(tensor).logical_not().flatten(1).any(1).nonzero();
  return bad.numel() > 0 ? bad[0].item<int64_t>() : -1;
}

std::string to_string(const TensorStatistics& statistics) {
  const auto& [sizes, type, nans, infinities, least, most, mean] = statistics;
  std::string text = fmt::format("{} {}: ", type, sizes_text(sizes));
  if (!statistics.finite())
    text += fmt::format("{} NaN, {} infinite, the others ", nans, infinities);
  return text + fmt::format("from {:.3g} to {:.3g}, mean {:.3g}", least, most, mean);
}

std::string sizes_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

}  // namespace linescan
