#include "linescan/models/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "linescan/base/error.h"
#include "linescan/models/tensor_file.h"

namespace linescan {
namespace {

using TensorMap = std::map<std::string, at::Tensor>;

TensorMap state_of(const torch::nn::Module& module) {
  TensorMap state;
  for (const auto& item : module.named_parameters()) state.emplace(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace(item.key(), item.value());
  return state;
}

struct Rename {
  std::string_view old_part, new_part;
  bool at_start;
};

// Parts of names that published files have changed over time.
constexpr Rename kRenames[] = {{"patch_embed.proj.", "patch_embed.0.", true},
                               {"patch_embed.norm.", "patch_embed.2.", true},
                               {".ln_1.", ".norm.", false},
                               {".self_attention.", ".op.", false},
                               {"norm.", "classifier.norm.", true},
                               {"head.", "classifier.head.", true}};

std::string current_name(const std::string& name) {
  std::string result = name;
  for (const Rename& rename : kRenames) {
    const std::size_t place = result.find(rename.old_part);
    if (place == std::string::npos || (rename.at_start && place != 0)) continue;
    result.replace(place, rename.old_part.size(), rename.new_part);
  }
  return result;
}

// [out, in] and [out, in, 1, 1] hold the same weight.
bool same_matrix(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor& small = a.dim() < b.dim() ? a : b;
  const at::Tensor& large = a.dim() < b.dim() ? b : a;
  return small.dim() == 2 && large.dim() == 4 && small.size(0) == large.size(0) &&
         small.size(1) == large.size(1) && large.size(2) == 1 && large.size(3) == 1;
}

// `got` in the shape of `expected`; nothing if it does not fit.
std::optional<at::Tensor> fitted(const std::string& name, const at::Tensor& got,
                                 const at::Tensor& expected) {
  if (got.is_floating_point() != expected.is_floating_point()) return std::nullopt;
  if (got.sizes() == expected.sizes()) return got;
  if (same_matrix(got, expected)) return got.reshape(expected.sizes());
  const bool embedding = name.ends_with("pos_embed") && got.dim() == 4 && expected.dim() == 4 &&
                         got.size(0) == expected.size(0) && got.size(1) == expected.size(1) &&
                         got.numel() > 0;
  if (!embedding) return std::nullopt;
  return at::upsample_bicubic2d(got.to(at::kFloat), {expected.size(2), expected.size(3)},
                                /*align_corners=*/false);
}

void append(std::vector<std::string>& parts, const char* kind,
            const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 5;  // of another network, all are wrong
  if (names.empty()) return;
  const std::span<const std::string> first(names.data(), std::min(names.size(), kMost));
  parts.push_back(fmt::format("{}: {}", kind, fmt::join(first, ", ")));
  if (names.size() > kMost) parts.back() += fmt::format(" and {} more", names.size() - kMost);
}

}  // namespace

void load_weights(torch::nn::Module& module, const std::filesystem::path& path) {
  torch::NoGradGuard no_grad;
  const TensorMap expected = state_of(module);
  std::vector<std::string> missing, unexpected, unfit, twice;

  TensorMap got;
  for (const auto& [name, tensor] : read_tensors(path)) {
    const std::string current = expected.contains(name) ? name : current_name(name);
    if (!expected.contains(current))
      unexpected.push_back(name);
    else if (!got.emplace(current, tensor).second)
      twice.push_back(current);
  }
  TensorMap ready;
  for (const auto& [name, target] : expected) {
    const auto found = got.find(name);
    if (found == got.end()) {
      missing.push_back(name);
    } else if (const auto tensor = fitted(name, found->second, target)) {
      ready.emplace(name, *tensor);
    } else {
      unfit.push_back(
          fmt::format("{} {}, expected {}", name, describe(found->second), describe(target)));
    }
  }
  std::vector<std::string> problems;
  append(problems, "missing", missing);
  append(problems, "unexpected", unexpected);
  append(problems, "wrong shape", unfit);
  append(problems, "under two names", twice);
  if (!problems.empty())
    throw_error<InvalidArgument>("weights: {} does not fit the network: {}", path.string(),
                                 fmt::join(problems, "; "));
  for (const auto& [name, target] : expected) at::Tensor(target).copy_(ready.at(name));
}

void save_weights(const torch::nn::Module& module, const std::filesystem::path& path) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : state_of(module)) tensors.emplace_back(name, tensor);
  write_tensors(path, tensors);
}

}  // namespace linescan
