// Products over the channels of channels-last activations, and the one place that knows how a
// [batch, height, width, channels] tensor is shown to PyTorch's convolutions.
//
// Activations are contiguous in channels from the stem to the head: a 1x1 convolution is then a
// plain matrix product, a layer norm runs along memory, and nothing is ever transposed. The view
// [batch, channels, height, width] of such a tensor is PyTorch's channels-last memory format.
#pragma once

#include <torch/torch.h>

namespace linescan {

// [batch, channels, height, width] view of x [batch, height, width, channels], and back.
inline at::Tensor channels_second(const at::Tensor& x) { return x.permute({0, 3, 1, 2}); }
inline at::Tensor channels_last(const at::Tensor& x) { return x.permute({0, 2, 3, 1}); }

// A linear layer whose weight starts as a normal distribution of deviation 0.02, bias 0.
torch::nn::Linear make_linear(int64_t inputs, int64_t outputs, bool bias);

// x [..., inputs] -> [..., outputs].
at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// residual + project(x): one pass less than a product and a sum.
at::Tensor add_projection(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias);

// A convolution of x [batch, height, width, channels]; the result has the same layout.
at::Tensor convolve(torch::nn::Conv2d& convolution, const at::Tensor& x);

}  // namespace linescan
