#include "linescan/models/layers/recomputed.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "linescan/base/error.h"
#include "linescan/binding/layer_norm.h"
#include "linescan/binding/tensors.h"

namespace linescan {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}); }

Tensor like_rows_of(const Tensor& product, const Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = product.size(-1);
  return product.view(sizes);
}

void refuse_second_derivative() {
  if (at::GradMode::is_enabled())
    throw_error<Unsupported>("recomputed product: second derivatives are not available");
}

Tensor activation_of(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu(x);
    case Activation::kGelu:
      return at::gelu(x);
    case Activation::kRelu:
      return at::relu(x);
    default:
      return at::sigmoid(x);
  }
}

// The gradient of x, given that of y = activation(x).
Tensor activation_gradient(const Tensor& gradient, const Tensor& x, const Tensor& y,
                           Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return at::silu_backward(gradient, x);
    case Activation::kGelu:
      return at::gelu_backward(gradient, x);
    case Activation::kRelu:
      return at::threshold_backward(gradient, y, 0);
    default:
      return at::sigmoid_backward(gradient, y);
  }
}

std::optional<Tensor> autocast_optional(const Tensor& tensor) {
  return tensor.defined() ? std::optional(autocast(tensor)) : std::nullopt;
}

// Gradients of weight and bias of a product whose inputs are `input` [rows, inputs].
std::pair<Tensor, Tensor> product_gradients(const Tensor& gradient, const Tensor& input,
                                            bool has_bias) {
  return {gradient.t().mm(input), has_bias ? gradient.sum(0) : Tensor()};
}

class NormedProjectionFunction : public torch::autograd::Function<NormedProjectionFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& norm_weight,
                               const Tensor& norm_bias, double epsilon, const Tensor& weight,
                               const std::optional<Tensor>& bias) {
    const Normed normed = layer_norm(x, norm_weight, norm_bias, epsilon, weight.scalar_type());
    context->save_for_backward({x, normed.mean, normed.rstd, norm_weight, norm_bias, weight});
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["has_bias"] = bias.has_value();
    return {like_rows_of(at::linear(rows(normed.out), weight, bias), x), x};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative();
    const auto saved = context->get_saved_variables();
    const Tensor &x = saved[0], &norm_weight = saved[3], &norm_bias = saved[4], &weight = saved[5];
    const Tensor& residual = gradients[1];
    if (!gradients[0].defined()) return {residual, {}, {}, {}, {}, {}};
    const Tensor gradient = rows(gradients[0]);
    Tensor gweight, gbias;
    {
      const Tensor again =
          layer_norm(x, norm_weight, norm_bias, context->saved_data["epsilon"].toDouble(),
                     weight.scalar_type())
              .out;
      std::tie(gweight, gbias) =
          product_gradients(gradient, rows(again), context->saved_data["has_bias"].toBool());
    }
    const auto [gx, gnorm_weight, gnorm_bias] =
        layer_norm_backward(like_rows_of(gradient.mm(weight), x), x, saved[1], saved[2],
                            norm_weight, optional(residual));
    return {gx, gnorm_weight, gnorm_bias, {}, gweight, gbias};
  }
};

class ActivatedProjectionFunction : public torch::autograd::Function<ActivatedProjectionFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, int64_t activation,
                        const Tensor& weight, const std::optional<Tensor>& bias) {
    context->save_for_backward({x, weight});
    context->saved_data["activation"] = activation;
    context->saved_data["has_bias"] = bias.has_value();
    const Tensor y = activation_of(rows(x), static_cast<Activation>(activation));
    return like_rows_of(at::linear(y, weight, bias), x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    refuse_second_derivative();
    const auto saved = context->get_saved_variables();
    const auto activation = static_cast<Activation>(context->saved_data["activation"].toInt());
    const Tensor x = rows(saved[0]), &weight = saved[1], gradient = rows(gradients[0]);
    const Tensor y = activation_of(x, activation);
    const auto [gweight, gbias] =
        product_gradients(gradient, y, context->saved_data["has_bias"].toBool());
    const Tensor gx = activation_gradient(gradient.mm(weight), x, y, activation);
    return {gx.view(saved[0].sizes()), {}, gweight, gbias};
  }
};

}  // namespace

at::ScalarType autocast_type(const Tensor& tensor) {
  const at::DeviceType device = tensor.device().type();
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : tensor.scalar_type();
}

Tensor autocast(const Tensor& tensor) {
  return at::autocast::cached_cast(autocast_type(tensor), tensor, tensor.device().type());
}

NormedProjection normed_projection(const Tensor& x, const Tensor& norm_weight,
                                   const Tensor& norm_bias, double epsilon, const Tensor& weight,
                                   const Tensor& bias) {
  const Tensor cast_weight = autocast(weight);
  const std::optional<Tensor> cast_bias = autocast_optional(bias);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto results =
      NormedProjectionFunction::apply(x, norm_weight, norm_bias, epsilon, cast_weight, cast_bias);
  return {results[0], results[1]};
}

Tensor activated_projection(const Tensor& x, Activation activation, const Tensor& weight,
                            const Tensor& bias) {
  const Tensor cast_weight = autocast(weight);
  const std::optional<Tensor> cast_bias = autocast_optional(bias);
  const Tensor cast_x = autocast(x);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return ActivatedProjectionFunction::apply(cast_x, static_cast<int64_t>(activation), cast_weight,
                                            cast_bias);
}

}  // namespace linescan
