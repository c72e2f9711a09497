// selective_scan for LibTorch programs; the same operators as torch.ops.linescan.* in Python.
// Shapes, formulas and gradients: linescan/ops/selective_scan/README.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace linescan {

// u, delta, z [batch, channels, length]; A [channels, states]; B, C [batch, groups, states, length],
// [batch, states, length] or [channels, states]; D, delta_bias [channels];
// initial_state [batch, channels, states]. Returns (out [batch, channels, length], last_state
// [batch, channels, states]). Differentiable in every tensor. Throws c10::Error that names the
// argument, what was got and what was expected.
std::tuple<at::Tensor, at::Tensor> selective_scan(
    const at::Tensor& u, const at::Tensor& delta, const at::Tensor& A, const at::Tensor& B,
    const at::Tensor& C, const std::optional<at::Tensor>& D = {},
    const std::optional<at::Tensor>& z = {}, const std::optional<at::Tensor>& delta_bias = {},
    const std::optional<at::Tensor>& initial_state = {}, bool delta_softplus = false,
    std::optional<at::ScalarType> out_dtype = {});

// One token: u, delta, z [batch, channels]; B, C [batch, groups, states], [batch, states] or
// [channels, states] (read as [batch, states] where batch equals channels). Advances state [batch, channels, states] in place; returns [batch, channels].
at::Tensor selective_scan_step(const at::Tensor& u, const at::Tensor& delta, const at::Tensor& A,
                               const at::Tensor& B, const at::Tensor& C,
                               const std::optional<at::Tensor>& D,
                               const std::optional<at::Tensor>& z,
                               const std::optional<at::Tensor>& delta_bias, bool delta_softplus,
                               at::Tensor& state);

}  // namespace linescan
