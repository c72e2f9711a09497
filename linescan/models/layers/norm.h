// Normalisation of channels-last activations: layer norm over the channels, or batch norm.
#pragma once

#include <torch/torch.h>

#include <string_view>

#include "linescan/models/layers/recomputed.h"

namespace linescan {

// "ln", "ln2d" (the same numbers: the published code's name for another memory layout) and "bn".
enum class NormKind { kLayer, kBatch };
NormKind parse_norm(std::string_view name);

// What a layer behind a norm adds to its input x, and x to add it to: on a GPU the gradient of x comes
// back through both at once (recomputed.h).
struct Branch {
  at::Tensor value, residual;
};

inline constexpr double kNormEpsilon = 1e-5;

// Parameters weight [channels] = 1 and bias [channels] = 0; batch norm also has the buffers
// running_mean, running_var and num_batches_tracked.
class NormImpl : public torch::nn::Module {
 public:
  NormImpl(NormKind kind, int64_t channels);

  // x [batch, height, width, channels] -> the same shape and layout. On a GPU the result of a layer
  // norm has autocast's type, so that a half-precision network keeps nothing in float32.
  at::Tensor forward(const at::Tensor& x);

  // project(forward(x), weight, bias) that keeps x alone for the backward pass. Layer norms only.
  NormedProjection forward_projected(const at::Tensor& x, const at::Tensor& weight,
                                     const at::Tensor& bias);
  bool is_layer_norm() const { return kind_ == NormKind::kLayer; }

 private:
  NormKind kind_;
  at::Tensor weight_, bias_;
  at::Tensor running_mean_, running_var_, batches_;
};
TORCH_MODULE(Norm);

}  // namespace linescan
