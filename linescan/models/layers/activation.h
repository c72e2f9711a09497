// Pointwise activations by name, in place where autograd allows it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace linescan {

enum class Activation { kSilu, kGelu, kRelu, kSigmoid };

// "silu", "gelu", "relu", "sigmoid"; throws InvalidArgument with the nearest name. `kind` is what
// the message calls the option.
Activation parse_activation(std::string_view kind, std::string_view name);

// The activation of a tensor that the caller no longer needs: overwritten when no gradient is
// recorded, a new tensor otherwise.
at::Tensor activate(const at::Tensor& x, Activation activation);

}  // namespace linescan
