// depthwise_conv for LibTorch programs; the same operator as torch.ops.linescan.depthwise_conv in
// Python. Formulas and gradients: linescan/ops/depthwise_conv/README.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace linescan {

// x [batch, height, width, channels] of any floating type; weight [channels, 1, 3, 3]; bias
// [channels]. Stride 1, zeros around the image; SiLU behind it if `silu`. Returns the shape and type
// of x. Differentiable in every tensor.
at::Tensor depthwise_conv(const at::Tensor& x, const at::Tensor& weight,
                          const std::optional<at::Tensor>& bias, bool silu);

}  // namespace linescan
