// layer_norm for LibTorch: schema, the CPU's way, Meta, autograd, registration. The kernels for GPUs
// are bound in cuda/layer_norm.cpp; on the CPU LibTorch's own are as good
// (docs/decisions/0012-fused-layers-on-gpus.md).

#include "linescan/binding/layer_norm.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
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
  m.def(
      "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float epsilon, "
      "ScalarType? out_dtype=None) -> (Tensor out, Tensor mean, Tensor rstd)",
      tags);
  m.def(
      "layer_norm_backward(Tensor grad_out, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, "
      "Tensor? skip) -> (Tensor x, Tensor weight, Tensor bias)",
      tags);
}

namespace {

// ---- On the CPU --------------------------------------------------------------------------------

OptionalTensor cast(const OptionalTensor& tensor, at::ScalarType type) {
  return given(tensor) ? OptionalTensor(tensor->to(type)) : std::nullopt;
}

Tensors norm_cpu(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                 double epsilon, std::optional<at::ScalarType> out_dtype) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check_layer_norm(x, weight, bias, epsilon, out_dtype);
  const at::ScalarType type = parameter_type(x);
  auto [out, mean, rstd] = at::native_layer_norm(x.contiguous().to(type), {x.size(-1)},
                                                 cast(weight, type), cast(bias, type), epsilon);
  return {out.to(out_dtype.value_or(x.scalar_type())), mean.squeeze(-1), rstd.squeeze(-1)};
}

Tensors norm_backward_cpu(const Tensor& grad_out, const Tensor& x, const Tensor& mean,
                          const Tensor& rstd, const OptionalTensor& weight,
                          const OptionalTensor& skip) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  check_layer_norm_backward(grad_out, x, mean, rstd, weight, skip);
  const at::ScalarType type = parameter_type(x);
  const OptionalTensor gamma = cast(weight, type);
  // The bias itself plays no part in its gradient; its shape does.
  auto [gx, gweight, gbias] = at::native_layer_norm_backward(
      grad_out.contiguous().to(type), x.contiguous().to(type), {x.size(-1)}, mean.unsqueeze(-1),
      rstd.unsqueeze(-1), gamma, gamma, {true, gamma.has_value(), gamma.has_value()});
  if (given(skip)) gx = at::add(gx, *skip);
  if (!gamma)
    return {gx.to(x.scalar_type()), at::empty({0}, x.options()), at::empty({0}, x.options())};
  return {gx.to(x.scalar_type()), gweight.to(weight->scalar_type()),
          gbias.to(weight->scalar_type())};
}

// ---- Meta: shapes without data, for torch.compile ------------------------------------------------

Tensors norm_meta(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double epsilon, std::optional<at::ScalarType> out_dtype) {
  check_layer_norm(x, weight, bias, epsilon, out_dtype);
  const auto row_sizes = x.sym_sizes().slice(0, x.dim() - 1);
  const at::TensorOptions statistics = x.options().dtype(parameter_type(x));
  return {at::empty_symint(x.sym_sizes(), x.options().dtype(out_dtype.value_or(x.scalar_type()))),
          at::empty_symint(row_sizes, statistics), at::empty_symint(row_sizes, statistics)};
}

Tensors norm_backward_meta(const Tensor& grad_out, const Tensor& x, const Tensor& mean,
                           const Tensor& rstd, const OptionalTensor& weight,
                           const OptionalTensor& skip) {
  check_layer_norm_backward(grad_out, x, mean, rstd, weight, skip);
  const auto parameter = [&] {
    return given(weight) ? at::empty_like(*weight) : at::empty({0}, x.options());
  };
  return {at::empty_symint(x.sym_sizes(), x.options()), parameter(), parameter()};
}

// ---- Autograd ----------------------------------------------------------------------------------

const auto& norm_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::layer_norm", "")
                             .typed<decltype(norm_cpu)>();
  return op;
}

class LayerNormFunction : public torch::autograd::Function<LayerNormFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const Tensor& x, const OptionalTensor& weight,
                                                const OptionalTensor& bias, double epsilon,
                                                std::optional<at::ScalarType> out_dtype) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [out, mean, rstd] = norm_op().call(x, weight, bias, epsilon, out_dtype);
    ctx->save_for_backward({x, mean, rstd, or_undefined(weight)});
    ctx->mark_non_differentiable({mean, rstd});
    return {out, mean, rstd};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor& weight = saved[3];
    auto [x, gweight, gbias] =
        layer_norm_backward(grads[0], saved[0], saved[1], saved[2], optional(weight));
    if (!weight.defined()) return {x, Tensor(), Tensor(), Tensor(), Tensor()};
    return {x, gweight, gbias, Tensor(), Tensor()};
  }
};

Tensors norm_autograd(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                      double epsilon, std::optional<at::ScalarType> out_dtype) {
  const auto results = LayerNormFunction::apply(x, weight, bias, epsilon, out_dtype);
  return {results[0], results[1], results[2]};
}

// ---- Registration ------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(linescan, CPU, m) {
  m.impl("layer_norm", norm_cpu);
  m.impl("layer_norm_backward", norm_backward_cpu);
}
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("layer_norm", norm_meta);
  m.impl("layer_norm_backward", norm_backward_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("layer_norm", norm_autograd);
  // Second derivatives: a clear error, never silently zero.
  m.impl("layer_norm_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

// ---- C++ interface: through the dispatcher, as from Python ---------------------------------------

Normed layer_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double epsilon, std::optional<at::ScalarType> out_dtype) {
  auto [out, mean, rstd] = norm_op().call(x, weight, bias, epsilon, out_dtype);
  return {out, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(const Tensor& grad_out, const Tensor& x,
                                                       const Tensor& mean, const Tensor& rstd,
                                                       const OptionalTensor& weight,
                                                       const OptionalTensor& skip) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::layer_norm_backward", "")
                             .typed<decltype(norm_backward_cpu)>();
  return op.call(grad_out, x, mean, rstd, weight, skip);
}

}  // namespace linescan
