// Where a NaN or an infinity comes from, after a loss or gradient turned bad.
#pragma once

#include <string>

#include "linescan/models/networks/vmamba.h"

namespace linescan {

// One phrase for the error line, the first of these that is true:
//   "parameter X has 3 values that are not finite"
//   "the first bad activation is layers.0.blocks.1, 12 of whose [128, 96, 7, 7] values are not finite"
//   "the first bad gradient is that of parameter X"          (the one nearest to the loss)
//   "no parameter, activation or gradient is bad when the step is repeated"
// Runs the network once more on `input`, in the mode that it is in; gradients are those of the
// step in question.
std::string find_non_finite(VMamba& network, const at::Tensor& input);

// The same for any network; `run` runs it and reports its parts.
std::string find_non_finite(torch::nn::Module& network,
                            const std::function<void(const PartObserver&)>& run);

}  // namespace linescan
