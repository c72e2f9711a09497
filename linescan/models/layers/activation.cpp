#include "linescan/models/layers/activation.h"

#include <torch/torch.h>

#include "linescan/models/layers/choice.h"

namespace linescan {
namespace {

constexpr Choice<Activation> kActivations[] = {{"silu", Activation::kSilu},
                                               {"gelu", Activation::kGelu},
                                               {"relu", Activation::kRelu},
                                               {"sigmoid", Activation::kSigmoid}};

}  // namespace

Activation parse_activation(std::string_view kind, std::string_view name) {
  return read_choice(kActivations, kind, name);
}

at::Tensor activate(const at::Tensor& x, Activation activation) {
  const bool in_place = !at::GradMode::is_enabled();
  at::Tensor target = x;  // the same storage
  switch (activation) {
    case Activation::kSilu:
      return in_place ? at::silu_(target) : at::silu(x);
    case Activation::kGelu:
      return in_place ? at::gelu_(target) : at::gelu(x);
    case Activation::kRelu:
      return in_place ? at::relu_(target) : at::relu(x);
    default:
      return in_place ? at::sigmoid_(target) : at::sigmoid(x);
  }
}

}  // namespace linescan
