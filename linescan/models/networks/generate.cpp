#include "linescan/models/networks/generate.h"

#include <cmath>

#include "linescan/base/error.h"

namespace linescan {
namespace {

// logits [vocabulary]
int64_t choose(const at::Tensor& logits, double temperature) {
  if (!at::isfinite(logits).all().item<bool>())
    throw_error<NotFinite>("generate: the logits of a token are not finite");
  if (temperature == 0) return logits.argmax().item<int64_t>();
  // The largest becomes 0 before it is divided, so that no temperature overflows it.
  const at::Tensor shifted = (logits - logits.max()).to(at::kDouble);
  return at::multinomial(at::softmax(shifted / temperature, 0), 1).item<int64_t>();
}

}  // namespace

void generate(LanguageModel& model, std::span<const int64_t> prompt, const GenerateOptions& options,
              const std::function<void(int64_t token)>& emit) {
  if (!(options.temperature >= 0) || std::isinf(options.temperature))
    throw_error<InvalidArgument>("generate: temperature is {}, expected 0 or a positive number",
                                 options.temperature);
  if (options.tokens < 0)
    throw_error<InvalidArgument>("generate: tokens is {}, expected 0 or more", options.tokens);
  if (prompt.empty())
    throw_error<InvalidArgument>("generate: the prompt is empty, expected a token");
  for (int64_t token : prompt)
    if (token < 0 || token >= model->vocabulary())
      throw_error<InvalidArgument>("generate: the prompt has token {}, expected 0 to {}", token,
                                   model->vocabulary() - 1);
  const at::NoGradGuard no_grad;
  model->eval();
  const at::Device device = model->parameters().front().device();
  LanguageModelCache cache;
  at::Tensor next = at::tensor(at::ArrayRef<int64_t>(prompt.data(), prompt.size())).unsqueeze(0);
  for (int64_t count = 0; count < options.tokens; ++count) {
    const at::Tensor logits = model->forward(next.to(device), &cache).select(1, -1).squeeze(0);
    const int64_t token = choose(logits.to(at::kCPU, at::kFloat), options.temperature);
    emit(token);
    next = at::full({1, 1}, token, at::kLong);
  }
}

}  // namespace linescan
