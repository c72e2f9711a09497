// layer_norm for LibTorch programs; the same operator as torch.ops.linescan.layer_norm in Python.
// Formulas and gradients: linescan/ops/layer_norm/README.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace linescan {

struct Normed {
  at::Tensor out;         // [..., channels]
  at::Tensor mean, rstd;  // [...] float32 (float64 for float64 x); without gradients
};

// x [..., channels] of any floating type; weight, bias [channels], both or neither. out_dtype: that
// of x if absent. Statistics are float32. Differentiable in x, weight and bias.
Normed layer_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                  const std::optional<at::Tensor>& bias, double epsilon,
                  std::optional<at::ScalarType> out_dtype = {});

// Gradients of x, weight and bias; `skip` [..., channels] is added to that of x, and saves the pass
// that would add it later.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor& grad_out, const at::Tensor& x, const at::Tensor& mean, const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& skip = {});

}  // namespace linescan
