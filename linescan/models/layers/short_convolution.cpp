#include "linescan/models/layers/short_convolution.h"

#include <cmath>

#include "linescan/binding/causal_conv1d.h"
#include "linescan/binding/tensors.h"

namespace linescan {

ShortConvolutionImpl::ShortConvolutionImpl(int64_t channels, int64_t width, bool bias) {
  const double bound = 1 / std::sqrt(static_cast<double>(width));
  weight_ = register_parameter("weight", at::empty({channels, 1, width}).uniform_(-bound, bound));
  if (bias) bias_ = register_parameter("bias", at::empty({channels}).uniform_(-bound, bound));
}

at::Tensor ShortConvolutionImpl::forward(const at::Tensor& x, const at::Tensor& cu_seqlens,
                                         bool step, at::Tensor* state) {
  const at::Tensor weight = weight_.squeeze(1);
  if (step) return causal_conv1d_step(x.squeeze(1), weight, optional(bias_), *state).unsqueeze(1);
  const auto [out, last] = causal_conv1d(
      x, weight, optional(bias_), state ? optional(*state) : std::nullopt, optional(cu_seqlens));
  if (state) *state = last;
  return out;
}

}  // namespace linescan
