#include "linescan/lab/category.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace linescan::lab {
namespace {

constexpr std::string_view kNames[kCategories] = {
    "scan", "attention", "projections", "convolution", "norms", "MLP", "rest"};

bool has_any(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return name.find(word) != std::string_view::npos;
  });
}

}  // namespace

std::string_view name_of(Category category) { return kNames[static_cast<int>(category)]; }

Category categorise(std::string_view name, Part part, Category caller) {
  std::string low(name);
  std::transform(low.begin(), low.end(), low.begin(),
                 [](unsigned char letter) { return std::tolower(letter); });
  if (has_any(low, {"ss2d_scan", "ss2dscan", "selective_scan", "selectivescan"}))
    return Category::kScan;
  if (has_any(low, {"conv"})) return Category::kConvolution;
  if (has_any(low, {"layer_norm", "layernorm", "batch_norm", "batchnorm"})) return Category::kNorm;
  if (has_any(low, {"dot_product", "dotproduct", "_attention"})) return Category::kAttention;
  const bool product = has_any(low, {"linear", "addmm", "mm", "matmul", "einsum"});
  if (part == Part::kMlp && (product || caller == Category::kRest)) return Category::kMlp;
  if (product && caller != Category::kAttention) return Category::kProjection;
  if (caller != Category::kRest) return caller;
  if (part == Part::kScan) return Category::kScan;
  if (part == Part::kAttention) return Category::kAttention;
  return Category::kRest;
}

}  // namespace linescan::lab
