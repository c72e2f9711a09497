// depthwise_conv for LibTorch: schema, the CPU's way, Meta, autograd, registration. The kernels for
// GPUs are bound in cuda/depthwise_conv.cpp; on the CPU LibTorch's own are as good
// (docs/decisions/0012-fused-layers-on-gpus.md).

#include "linescan/binding/depthwise_conv.h"

#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "linescan/binding/layer_checks.h"
#include "linescan/binding/tensors.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Tensors = std::tuple<Tensor, Tensor, Tensor>;

// ---- Schema ------------------------------------------------------------------------------------

TORCH_LIBRARY_FRAGMENT(linescan, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def("depthwise_conv(Tensor x, Tensor weight, Tensor? bias, bool silu) -> Tensor", tags);
  m.def(
      "depthwise_conv_backward(Tensor grad_out, Tensor x, Tensor weight, Tensor? bias, bool silu) "
      "-> (Tensor x, Tensor weight, Tensor bias)",
      tags);
}

namespace {

// ---- On the CPU: LibTorch's convolution of the channels-last view ----------------------------------

Tensor to_planes(const Tensor& x) { return x.permute({0, 3, 1, 2}); }
Tensor from_planes(const Tensor& planes) { return planes.permute({0, 2, 3, 1}).contiguous(); }

Tensor convolve(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  const at::ScalarType type = x.scalar_type();
  return at::conv2d(to_planes(x), weight.to(type),
                    given(bias) ? OptionalTensor(bias->to(type)) : std::nullopt, /*stride=*/1,
                    /*padding=*/1, /*dilation=*/1, /*groups=*/x.size(3));
}

Tensor conv_cpu(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool silu) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check_depthwise_conv(x, weight, bias);
  const Tensor sums = convolve(x, weight, bias);
  return from_planes(silu ? at::silu(sums) : sums);
}

Tensors conv_backward_cpu(const Tensor& grad_out, const Tensor& x, const Tensor& weight,
                          const OptionalTensor& bias, bool silu) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check_depthwise_conv_backward(grad_out, x, weight, bias);
  Tensor gradient = to_planes(grad_out.to(x.scalar_type()));
  if (silu) gradient = at::silu_backward(gradient, convolve(x, weight, bias));
  auto [gx, gweight, gbias] = at::convolution_backward(
      gradient, to_planes(x), weight.to(x.scalar_type()), at::IntArrayRef{x.size(3)}, {1, 1},
      {1, 1}, {1, 1}, /*transposed=*/false, {0, 0}, x.size(3), {true, true, given(bias)});
  return {from_planes(gx), gweight.to(weight.scalar_type()),
          given(bias) ? gbias.to(bias->scalar_type()) : at::empty({0}, x.options())};
}

// ---- Meta: shapes without data, for torch.compile ------------------------------------------------

Tensor conv_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool) {
  check_depthwise_conv(x, weight, bias);
  return at::empty_symint(x.sym_sizes(), x.options());
}

Tensors conv_backward_meta(const Tensor& grad_out, const Tensor& x, const Tensor& weight,
                           const OptionalTensor& bias, bool) {
  check_depthwise_conv_backward(grad_out, x, weight, bias);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_like(weight),
          given(bias) ? at::empty_like(*bias) : at::empty({0}, x.options())};
}

// ---- Autograd ----------------------------------------------------------------------------------

const auto& conv_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::depthwise_conv", "")
                             .typed<decltype(conv_cpu)>();
  return op;
}

class DepthwiseConvFunction : public torch::autograd::Function<DepthwiseConvFunction> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        const Tensor& weight, const OptionalTensor& bias, bool silu) {
    at::AutoDispatchBelowADInplaceOrView below;
    ctx->save_for_backward({x, weight, or_undefined(bias)});
    ctx->saved_data["silu"] = silu;
    return conv_op().call(x, weight, bias, silu);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::depthwise_conv_backward", "")
                               .typed<decltype(conv_backward_cpu)>();
    const auto saved = ctx->get_saved_variables();
    auto [x, weight, bias] =
        op.call(grads[0], saved[0], saved[1], optional(saved[2]), ctx->saved_data["silu"].toBool());
    return {x, weight, saved[2].defined() ? bias : Tensor(), Tensor()};
  }
};

Tensor conv_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool silu) {
  return DepthwiseConvFunction::apply(x, weight, bias, silu);
}

// ---- Registration ------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(linescan, CPU, m) {
  m.impl("depthwise_conv", conv_cpu);
  m.impl("depthwise_conv_backward", conv_backward_cpu);
}
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("depthwise_conv", conv_meta);
  m.impl("depthwise_conv_backward", conv_backward_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("depthwise_conv", conv_autograd);
  // Second derivatives: a clear error, never silently zero.
  m.impl("depthwise_conv_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

// ---- C++ interface: through the dispatcher, as from Python ---------------------------------------

Tensor depthwise_conv(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                      bool silu) {
  return conv_op().call(x, weight, bias, silu);
}

}  // namespace linescan
