#include "linescan/train/sequence_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <string>
#include <vector>

#include "linescan/base/error.h"

namespace linescan {

double sequence_bytes_per_token(const RunConfig& config) {
  const LanguageModelConfig& model = config.language;
  const auto real = [](int64_t number) { return static_cast<double>(number); };
  const int64_t value_heads = model.value_heads > 0 ? model.value_heads : model.heads;
  const double keys = real(model.heads * model.head_dim);
  const double values = real(value_heads * model.head_dim) * model.expand_v;
  const double mlp = real(model.hidden) * model.mlp_ratio;
  // Numbers that a layer keeps: the residual stream, norms and projections of it; q and k before and
  // after their convolutions; v, o, the gate and what is made of them; the MLP's.
  const double layer = 6 * real(model.hidden) + 4 * keys + 12 * values + 5 * mlp;
  // Gradients on their way through one layer take half as much again.
  const double layers = (real(model.layers) + 0.5) * layer;
  const double ends = 3 * real(model.hidden) + 4.4 * real(config.sequences.vocabulary);
  const double bytes = config.recipe.precision == "bf16" ? 3.1 : 4;
  return bytes * (layers + ends);
}

void expect_sequences_fit(const RunConfig& config, int64_t memory_bytes) {
  if (config.recipe.device != "cpu" || memory_bytes <= 0) return;
  const double token = sequence_bytes_per_token(config);
  const auto length = static_cast<double>(config.sequences.length);
  const auto batch = static_cast<double>(config.recipe.batch);
  const double memory = static_cast<double>(memory_bytes), needed = token * batch * length;
  if (needed <= memory) return;
  const double longest = std::floor(memory / (token * batch));
  const double sequences = std::floor(memory / (token * length));
  std::vector<std::string> ways;
  if (longest > 0) ways.push_back(fmt::format("a length of at most {:.0f}", longest));
  if (sequences > 0) ways.push_back(fmt::format("a batch of at most {:.0f}", sequences));
  if (ways.empty()) ways.emplace_back("a smaller network");
  throw_error<InvalidArgument>(
      "options batch and length are {} and {}: such a step needs about {:.1f} GB, this machine has "
      "{:.1f}; expected {}",
      config.recipe.batch, config.sequences.length, needed / 1e9, memory / 1e9,
      fmt::join(ways, " or "));
}

}  // namespace linescan
