#include "linescan/models/layers/rms_norm.h"

namespace linescan {

RmsNormImpl::RmsNormImpl(int64_t channels, double epsilon)
    : weight_(register_parameter("weight", torch::ones(channels))), epsilon_(epsilon) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) {
  return at::rms_norm(x, {weight_.size(0)}, weight_.to(x.scalar_type()), epsilon_);
}

at::Tensor RmsNormImpl::forward_gated(const at::Tensor& x, const at::Tensor& gate) {
  return forward(x) * at::silu(gate);
}

}  // namespace linescan
