// A short convolution along time of every channel by itself with SiLU behind it (causal_conv1d), as a
// layer that remembers the last tokens between calls.
#pragma once

#include <torch/torch.h>

namespace linescan {

// Parameters weight [channels, 1, width] and perhaps bias [channels], drawn like those of PyTorch's
// Conv1d.
class ShortConvolutionImpl : public torch::nn::Module {
 public:
  ShortConvolutionImpl(int64_t channels, int64_t width, bool bias);

  // x [batch, length, channels] -> the same shape. `cu_seqlens` may be undefined. `state`, if any,
  // holds the last width - 1 tokens [sequences, channels, width - 1], undefined at the beginning, and
  // moves on; with `step` x is one token a sequence and the state moves in place.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& cu_seqlens, bool step,
                     at::Tensor* state);

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(ShortConvolution);

}  // namespace linescan
