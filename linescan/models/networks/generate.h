// Tokens from a language model, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "linescan/models/networks/language_model.h"

namespace linescan {

struct GenerateOptions {
  int64_t tokens = 1;      // how many
  double temperature = 0;  // 0: always the likeliest; else drawn from softmax(logits / temperature)
};

// Reads `prompt`, which has a token, at once and hands each new token to `emit` as soon as it is known:
// a step costs the same however long the sequence is, because the layers remember it. In evaluation
// mode and without gradients; draws come from PyTorch's generator of the CPU. Throws InvalidArgument
// for tokens outside of the vocabulary, NotFinite where logits are NaN or infinite.
void generate(LanguageModel& model, std::span<const int64_t> prompt, const GenerateOptions& options,
              const std::function<void(int64_t token)>& emit);

}  // namespace linescan
