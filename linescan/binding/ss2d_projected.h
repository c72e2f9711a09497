// The scan of ss2d together with its projection: where several states make the scan take most of the time, the backward pass
// computes the projection again instead of keeping it, and its gradient, of the whole batch
// (docs/decisions/0066-projections-slice-by-slice.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace linescan {

// Whether the backward pass of a call on a GPU is to go that way: several states of half data in channels-last planes that one
// tile may hold. A function of sizes alone; while tracing, of these only.
bool projects_again(const at::Tensor& x, const at::Tensor& dt_weight, const at::Tensor& A_log,
                    at::IntArrayRef routes);

// The result; keeps states for the backward pass. weight [K (R + 2 N), channels] and bias [K (R + 2 N)] have the type of x, whose pixels are rows of neighbouring
// channels. Differentiable in every tensor.
at::Tensor ss2d_scan_projected(const at::Tensor& x, const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias, const at::Tensor& dt_weight,
                               const at::Tensor& dt_bias, const at::Tensor& A_log,
                               const at::Tensor& D, at::IntArrayRef routes,
                               std::optional<at::ScalarType> out_dtype);

}  // namespace linescan
