// layer_norm for CUDA tensors; schema, checks of shapes and autograd are in binding/layer_norm.cpp.

#include "linescan/ops/layer_norm/layer_norm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "linescan/base/activity.h"
#include "linescan/binding/cuda/gpu_tensors.h"
#include "linescan/binding/layer_checks.h"
#include "linescan/binding/tensors.h"

namespace linescan {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Tensors = std::tuple<Tensor, Tensor, Tensor>;

constexpr std::string_view kName = "layer_norm";

// [rows, channels], dense.
Tensor as_rows(const Tensor& x) { return x.reshape({-1, x.size(-1)}).contiguous(); }

Tensor parameter(const OptionalTensor& tensor) {
  return given(tensor) ? tensor->to(at::kFloat).contiguous() : Tensor();
}

// The tensors of a call, kept alive beside the views on them.
struct Call {
  Tensor x, weight, bias;
  LayerNormProblem problem;

  Call(const Tensor& x_in, const OptionalTensor& weight_in, const OptionalTensor& bias_in)
      : x(as_rows(x_in)), weight(parameter(weight_in)), bias(parameter(bias_in)) {
    problem.x = view_of(kName, "x", x);
    problem.weight = view_of(kName, "weight", optional(weight));
    problem.bias = view_of(kName, "bias", optional(bias));
  }
};

Tensors norm_cuda(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                  double epsilon, std::optional<at::ScalarType> out_dtype) {
  check_layer_norm(x, weight, bias, epsilon, out_dtype);
  const c10::cuda::CUDAGuard guard(x.device());
  Call call(x, weight, bias);
  const Tensor out = at::empty(x.sizes(), x.options().dtype(out_dtype.value_or(x.scalar_type())));
  const auto row_sizes = x.sizes().slice(0, x.dim() - 1);
  const Tensor mean = at::empty(row_sizes, x.options().dtype(at::kFloat));
  const Tensor rstd = at::empty_like(mean);
  LayerNormProblem& problem = call.problem;
  problem.epsilon = epsilon;
  problem.out = view_of(kName, "out", out.view({-1, call.x.size(1)}));
  problem.mean = view_of(kName, "mean", mean.view({-1}));
  problem.rstd = view_of(kName, "rstd", rstd.view({-1}));
  check(problem);
  const LayerNormGpuPlan how = plan(size_of(problem), Pass::kForward, gpu_of(x));
  const OperatorRunning running(how);
  forward(problem, how, nullptr, current_stream(x));
  return {out, mean, rstd};
}

Tensors norm_backward_cuda(const Tensor& grad_out, const Tensor& x, const Tensor& mean,
                           const Tensor& rstd, const OptionalTensor& weight,
                           const OptionalTensor& skip) {
  check_layer_norm_backward(grad_out, x, mean, rstd, weight, skip);
  const c10::cuda::CUDAGuard guard(x.device());
  Call call(x, weight, {});
  // Results are never float64 here.
  const Tensor upstream =
      as_rows(grad_out.scalar_type() == at::kDouble ? grad_out.to(at::kFloat) : grad_out);
  const Tensor mean_rows = mean.contiguous(), rstd_rows = rstd.contiguous();
  const Tensor second = given(skip) ? as_rows(skip->to(x.scalar_type())) : Tensor();
  const Tensor gx = at::empty(x.sizes(), x.options());
  LayerNormProblem& problem = call.problem;
  problem.mean = view_of(kName, "mean", mean_rows.view({-1}));
  problem.rstd = view_of(kName, "rstd", rstd_rows.view({-1}));
  check(problem);

  LayerNormGradients gradients;
  gradients.out = view_of(kName, "gradient of out", upstream);
  if (second.defined()) gradients.skip = view_of(kName, "skip", second);
  gradients.x = view_of(kName, "gradient of x", gx.view({-1, call.x.size(1)}));
  Tensor gweight, gbias;
  if (call.weight.defined()) {
    gweight = at::empty_like(call.weight);
    gbias = at::empty_like(call.weight);
    gradients.weight = view_of(kName, "gradient of weight", gweight);
    gradients.bias = view_of(kName, "gradient of bias", gbias);
  }
  const LayerNormGpuPlan plan =
      linescan::plan(size_of(problem, gradients), Pass::kBackward, gpu_of(x));
  const OperatorRunning running(plan);
  const Tensor workspace = gpu_workspace(x, plan.workspace_bytes);
  backward(problem, gradients, plan, bytes_of(workspace), current_stream(x));
  if (!call.weight.defined()) return {gx, at::empty({0}, x.options()), at::empty({0}, x.options())};
  return {gx, gweight.to(weight->scalar_type()), gbias.to(weight->scalar_type())};
}

TORCH_LIBRARY_IMPL(linescan, CUDA, m) {
  m.impl("layer_norm", norm_cuda);
  m.impl("layer_norm_backward", norm_backward_cuda);
}

}  // namespace
}  // namespace linescan
