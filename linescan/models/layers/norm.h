// Normalisation of channels-last activations: layer norm over the channels, or batch norm.
#pragma once

#include <torch/torch.h>

#include <string_view>

namespace linescan {

// "ln", "ln2d" (the same numbers: the published code's name for another memory layout) and "bn".
enum class NormKind { kLayer, kBatch };
NormKind parse_norm(std::string_view name);

inline constexpr double kNormEpsilon = 1e-5;

// Parameters weight [channels] = 1 and bias [channels] = 0; batch norm also has the buffers
// running_mean, running_var and num_batches_tracked.
class NormImpl : public torch::nn::Module {
 public:
  NormImpl(NormKind kind, int64_t channels);

  // x [batch, height, width, channels] -> the same shape and layout.
  at::Tensor forward(const at::Tensor& x);

 private:
  NormKind kind_;
  at::Tensor weight_, bias_;
  at::Tensor running_mean_, running_var_, batches_;
};
TORCH_MODULE(Norm);

}  // namespace linescan
