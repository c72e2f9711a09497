// depthwise_conv for CUDA tensors; schema and autograd are in binding/depthwise_conv.cpp.

#include "linescan/ops/depthwise_conv/depthwise_conv.h"

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

constexpr std::string_view kName = "depthwise_conv";

// The tensors of a call, kept alive beside the views on them.
struct Call {
  Tensor x, weight, bias;
  DepthwiseConvProblem problem;

  Call(const Tensor& x_in, const Tensor& weight_in, const OptionalTensor& bias_in, bool silu)
      : x(x_in.contiguous()) {
    weight = weight_in.select(1, 0).to(at::kFloat).contiguous();
    if (given(bias_in)) bias = bias_in->to(at::kFloat).contiguous();
    problem.x = view_of(kName, "x", x);
    problem.weight = view_of(kName, "weight", weight);
    problem.bias = view_of(kName, "bias", optional(bias));
    problem.silu = silu;
    check(problem);
  }
};

Tensor conv_cuda(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, bool silu) {
  check_depthwise_conv(x, weight, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  Call call(x, weight, bias, silu);
  const Tensor out = at::empty(x.sizes(), x.options());
  call.problem.out = view_of(kName, "out", out);
  const DepthwiseConvGpuPlan plan =
      linescan::plan(size_of(call.problem), Pass::kForward, gpu_of(x));
  const OperatorRunning running(plan);
  forward(call.problem, plan, nullptr, current_stream(x));
  return out;
}

Tensors conv_backward_cuda(const Tensor& grad_out, const Tensor& x, const Tensor& weight,
                           const OptionalTensor& bias, bool silu) {
  check_depthwise_conv_backward(grad_out, x, weight, bias);
  const c10::cuda::CUDAGuard guard(x.device());
  const Call call(x, weight, bias, silu);
  const Tensor upstream = grad_out.to(x.scalar_type()).contiguous();
  const Tensor gx = at::empty(x.sizes(), x.options());
  const Tensor gweight = at::empty_like(call.weight);
  Tensor gbias;
  DepthwiseConvGradients gradients;
  gradients.out = view_of(kName, "gradient of out", upstream);
  gradients.x = view_of(kName, "gradient of x", gx);
  gradients.weight = view_of(kName, "gradient of weight", gweight);
  if (call.bias.defined()) {
    gbias = at::empty_like(call.bias);
    gradients.bias = view_of(kName, "gradient of bias", gbias);
  }
  const DepthwiseConvGpuPlan plan =
      linescan::plan(size_of(call.problem, gradients), Pass::kBackward, gpu_of(x));
  const OperatorRunning running(plan);
  const Tensor workspace = gpu_workspace(x, plan.workspace_bytes);
  backward(call.problem, gradients, plan, bytes_of(workspace), current_stream(x));
  return {gx, gweight.unsqueeze(1).to(weight.scalar_type()),
          given(bias) ? gbias.to(bias->scalar_type()) : at::empty({0}, x.options())};
}

TORCH_LIBRARY_IMPL(linescan, CUDA, m) {
  m.impl("depthwise_conv", conv_cuda);
  m.impl("depthwise_conv_backward", conv_backward_cuda);
}

}  // namespace
}  // namespace linescan
