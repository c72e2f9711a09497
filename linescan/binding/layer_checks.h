// What layer_norm and depthwise_conv refuse, on whatever device and while tracing: their bindings for
// the CPU, for CUDA and for Meta call these first. Sizes that are symbols are compared as far as
// tracing allows; the kernel's own call compares the rest.
//
// All throw InvalidArgument that names the operator and the argument, what was got and what was
// expected.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace linescan {

void check_layer_norm(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias, double epsilon,
                      std::optional<at::ScalarType> out_dtype);
void check_layer_norm_backward(const at::Tensor& grad_out, const at::Tensor& x,
                               const at::Tensor& mean, const at::Tensor& rstd,
                               const std::optional<at::Tensor>& weight,
                               const std::optional<at::Tensor>& skip);

void check_depthwise_conv(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias);
void check_depthwise_conv_backward(const at::Tensor& grad_out, const at::Tensor& x,
                                   const at::Tensor& weight, const std::optional<at::Tensor>& bias);

}  // namespace linescan
