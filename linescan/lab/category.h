// What an operator's time is counted as in a breakdown.
#pragma once

#include <string_view>

#include "linescan/models/layers/part.h"

namespace linescan::lab {

enum class Category { kScan, kAttention, kProjection, kConvolution, kNorm, kMlp, kRest };
inline constexpr int kCategories = 7;

// "scan", "attention", "projections", "convolution", "norms", "MLP", "rest"
std::string_view name_of(Category category);

// Of an operator or autograd node, from its name ("aten::addmm", "linescan::ss2d_scan",
// "ConvolutionBackward0"), the part of the network that it works for, and the category of the operator
// that called it (kRest: nobody). Scans, convolutions, norms and attention are known by name; a matrix
// product belongs to the MLP that it is in, or is a projection; what has no name of its own, such as a
// sum or an allocation, goes with its caller or else with its part.
Category categorise(std::string_view name, Part part, Category caller);

}  // namespace linescan::lab
