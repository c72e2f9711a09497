// ss2d for LibTorch programs; the same operator as torch.ops.linescan.ss2d in Python.
// Shapes, formulas and gradients: linescan/ops/ss2d/README.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace linescan {

// x [batch, channels, height, width], contiguous or channels-last (both native);
// x_proj_weight [K, R + 2 N, channels]; x_proj_bias [K, R + 2 N]; dt_proj_weight [K, channels, R];
// dt_proj_bias [K, channels]; A_log [K * channels, N]; D [K * channels]; K = routes.size(),
// R = dt rank, N = states. A route is four bits: 1 column-major, 2 reverse within the line,
// 4 reverse the order of the lines, 8 restart the state at every line.
// Returns [batch, channels, height, width] with the strides of x. Differentiable in every tensor.
at::Tensor ss2d(const at::Tensor& x, const at::Tensor& x_proj_weight,
                const std::optional<at::Tensor>& x_proj_bias, const at::Tensor& dt_proj_weight,
                const at::Tensor& dt_proj_bias, const at::Tensor& A_log, const at::Tensor& D,
                at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype = {});

}  // namespace linescan
