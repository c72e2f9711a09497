// Parameters that a backward pass did not reach.
#pragma once

#include <torch/nn/module.h>

#include <span>
#include <string>
#include <vector>

namespace linescan {

// Those that want a gradient and have none.
std::vector<std::string> unused_parameters(const torch::nn::Module& network);

// "a, b, c and 4 more"
std::string name_some(std::span<const std::string> names);

}  // namespace linescan
