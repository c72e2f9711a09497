#include "linescan/models/layers/norm.h"

#include "linescan/binding/layer_norm.h"
#include "linescan/models/layers/choice.h"
#include "linescan/models/layers/dense.h"

namespace linescan {
namespace {

constexpr Choice<NormKind> kNorms[] = {
    {"ln", NormKind::kLayer}, {"ln2d", NormKind::kLayer}, {"bn", NormKind::kBatch}};

// Weight of the newest batch in the running statistics: PyTorch's default.
constexpr double kMomentum = 0.1;

}  // namespace

NormKind parse_norm(std::string_view name) { return read_choice(kNorms, "norm", name); }

NormImpl::NormImpl(NormKind kind, int64_t channels) : kind_(kind) {
  weight_ = register_parameter("weight", torch::ones(channels));
  bias_ = register_parameter("bias", torch::zeros(channels));
  if (kind == NormKind::kBatch) {
    running_mean_ = register_buffer("running_mean", torch::zeros(channels));
    running_var_ = register_buffer("running_var", torch::ones(channels));
    batches_ = register_buffer("num_batches_tracked", torch::zeros({}, torch::kLong));
  }
}

at::Tensor NormImpl::forward(const at::Tensor& x) {
  if (kind_ == NormKind::kLayer && x.is_cuda())
    return layer_norm(x, weight_, bias_, kNormEpsilon, autocast_type(x)).out;
  if (kind_ == NormKind::kLayer)
    return at::layer_norm(x, {weight_.size(0)}, weight_, bias_, kNormEpsilon);
  if (is_training()) batches_.add_(1);
  return channels_last(at::batch_norm(channels_second(x), weight_, bias_, running_mean_,
                                      running_var_, is_training(), kMomentum, kNormEpsilon,
                                      at::globalContext().userEnabledCuDNN()))
      .contiguous();
}

NormedProjection NormImpl::forward_projected(const at::Tensor& x, const at::Tensor& weight,
                                             const at::Tensor& bias) {
  return normed_projection(x, weight_, bias_, kNormEpsilon, weight, bias);
}

}  // namespace linescan
