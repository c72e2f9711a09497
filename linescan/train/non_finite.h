// Where a NaN or an infinity comes from, after a loss or gradient turned bad.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <string>

namespace linescan {

// One phrase for the error line, the first of these that is true:
//   "parameter X has 3 values that are not finite"
//   "the input of sample 2 of the batch is not finite: float32 [128, 1, 28, 28]: 1 NaN, ..."
//   "the first bad activation is layers.0.blocks.1.op, 12 of whose [128, 7, 7, 96] values are not finite"
//   "the first bad gradient is that of parameter X"          (the one nearest to the loss)
//   "no parameter, activation or gradient is bad when the step is repeated"
// `forward` runs the network once more on `inputs` [batch, ...], in the mode that it is in; gradients
// are those of the step in question.
std::string find_non_finite(torch::nn::Module& network, const at::Tensor& inputs,
                            const std::function<at::Tensor(const at::Tensor&)>& forward);

}  // namespace linescan
