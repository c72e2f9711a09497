// causal_conv1d for CUDA tensors; schema and autograd are in binding/causal_conv1d.cpp.

#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "linescan/base/activity.h"
#include "linescan/binding/causal_conv1d_call.h"
#include "linescan/binding/cuda/gpu_tensors.h"
#include "linescan/binding/tensors.h"

namespace linescan {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr std::string_view kName = "causal_conv1d";

void run_forward(const CausalConv1dProblem& problem, const Tensor& x) {
  check_gpu(problem);
  const CausalConv1dGpuPlan plan = linescan::plan(gpu_size_of(problem), Pass::kForward, gpu_of(x));
  const OperatorRunning running(plan);
  forward(problem, plan, nullptr, current_stream(x));
}

std::tuple<Tensor, Tensor> forward_cuda(const Tensor& x, const Tensor& weight,
                                        const OptionalTensor& bias,
                                        const OptionalTensor& initial_state,
                                        const OptionalTensor& cu_seqlens, bool silu) {
  const c10::cuda::CUDAGuard guard(x.device());
  CausalConv1dCall call(x, weight, bias, initial_state, cu_seqlens, silu);
  auto [out, final_state] = causal_conv1d_results(x, weight, cu_seqlens);
  call.problem.out = view_of(kName, "out", out);
  call.problem.final_state = view_of(kName, "final_state", final_state);
  run_forward(call.problem, x);
  return {out, final_state};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_cuda(
    const OptionalTensor& grad_out, const OptionalTensor& grad_final_state, const Tensor& x,
    const Tensor& weight, const OptionalTensor& bias, const OptionalTensor& initial_state,
    const OptionalTensor& cu_seqlens, bool silu) {
  const c10::cuda::CUDAGuard guard(x.device());
  const CausalConv1dBackwardCall call(grad_out, grad_final_state, x, weight, bias, initial_state,
                                      cu_seqlens, silu);
  check_gpu(call.problem);
  const CausalConv1dGpuPlan plan =
      linescan::plan(gpu_size_of(call.problem, call.gradients), Pass::kBackward, gpu_of(x));
  const OperatorRunning running(plan);
  const Tensor workspace = gpu_workspace(x, plan.workspace_bytes);
  backward(call.problem, call.gradients, plan, bytes_of(workspace), current_stream(x));
  return call.results(weight, bias);
}

Tensor step_cuda(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, Tensor& state,
                 bool silu) {
  const c10::cuda::CUDAGuard guard(x.device());
  CausalConv1dCall call = causal_conv1d_step_call(x, weight, bias, state, silu);
  const Tensor out = at::empty_like(x), token = one_token(out);
  call.problem.out = view_of(kName, "out", token);
  run_forward(call.problem, x);
  count_version(state);
  return out;
}

TORCH_LIBRARY_IMPL(linescan, CUDA, m) {
  m.impl("causal_conv1d", forward_cuda);
  m.impl("causal_conv1d_backward", backward_cuda);
  m.impl("causal_conv1d_step", step_cuda);
}

}  // namespace
}  // namespace linescan
