// gated_delta_rule for CUDA tensors; schema and autograd are in binding/gated_delta_rule.cpp.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include "linescan/base/activity.h"
#include "linescan/base/error.h"
#include "linescan/binding/cuda/gpu_tensors.h"
#include "linescan/binding/gated_delta_rule_call.h"
#include "linescan/binding/tensors.h"

namespace linescan {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalScale = std::optional<double>;

// Bytes that may still be had on the current device: the driver's, and what the allocator keeps.
int64_t available_bytes() {
  std::size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(c10::cuda::current_device());
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<int64_t>(free) + stats.reserved_bytes[all].current -
         stats.allocated_bytes[all].current;
}

// What a pass needs beside what there is: its workspace, and of a forward pass what it keeps and its results.
int64_t needed_bytes(const GatedDeltaRuleSize& size, const GatedDeltaRuleGpuPlan& plan,
                     bool output_final_state) {
  if (plan.pass == Pass::kBackward) return plan.workspace_bytes;
  const int64_t o = size.batch * size.length * size.value_heads * size.V *
                    static_cast<int64_t>(size_of(size.dtype));
  const int64_t states =
      size.sequences * size.value_heads * size.K * size.V * static_cast<int64_t>(sizeof(float));
  return plan.workspace_bytes + plan.kept_bytes + o + (output_final_state ? states : 0);
}

// The most of a problem's batch (packed: tokens) of which that fits; nearly, because it does not grow evenly.
int64_t fitting_count(GatedDeltaRuleSize size, bool packed, Pass pass, bool output_final_state,
                      const Gpu& gpu, int64_t needed, int64_t available) {
  const double share = static_cast<double>(available) / static_cast<double>(needed);
  int64_t& count = packed ? size.length : size.batch;
  count = static_cast<int64_t>(share * 0.95 * static_cast<double>(count));
  while (count > 0) {
    if (!packed) size.sequences = count;
    const auto plan = linescan::plan(size, packed, pass, gpu);
    if (needed_bytes(size, plan, output_final_state) <= available) break;
    count = count * 3 / 4;
  }
  return count;
}

// A pass's plan. Refuses before anything is launched what would run out of memory in the middle of it, and says what
// would fit. Asks the driver only where that is likely.
GatedDeltaRuleGpuPlan plan_with_room(const GatedDeltaRuleSize& size, bool packed, Pass pass,
                                     bool output_final_state, const Gpu& gpu) {
  const GatedDeltaRuleGpuPlan plan = linescan::plan(size, packed, pass, gpu);
  const int64_t bytes = needed_bytes(size, plan, output_final_state);
  if (bytes < gpu.memory_bytes / 16) return plan;
  const int64_t available = available_bytes();
  if (bytes <= available) return plan;
  const int64_t count = packed ? size.length : size.batch;
  const int64_t fitting =
      fitting_count(size, packed, pass, output_final_state, gpu, bytes, available);
  const std::string advice = packed ? fmt::format("about {} of {} tokens would fit", fitting, count)
                             : fitting > 0 ? fmt::format("a batch of {} would fit", fitting)
                                           : "shorter sequences or fewer heads would fit";
  throw_error<Unsupported>(
      "gated_delta_rule: q [{}, {}, {}, {}] with {} value heads of V = {} needs {} bytes beside "
      "what it is given, {} are free; {}",
      size.batch, size.length, size.heads, size.K, size.value_heads, size.V, bytes, available,
      advice);
}

// A pass of a problem that has been checked; it runs while the object lives.
struct Running {
  GatedDeltaRuleGpuPlan plan;
  Tensor workspace;
  OperatorRunning running;

  Running(const GatedDeltaRuleGpuPlan& plan, const Tensor& q)
      : plan(plan), workspace(gpu_workspace(q, plan.workspace_bytes)), running(plan) {}
};

// o and final_state, and what the problem has room for.
std::tuple<Tensor, Tensor> run_forward(GatedDeltaRuleCall& call, const GatedDeltaRuleGpuPlan& plan,
                                       const Tensor& q, const Tensor& v, bool output_final_state) {
  const Running pass(plan, q);
  auto results = call.new_results(v, output_final_state);
  forward(call.problem, pass.plan, bytes_of(pass.workspace), current_stream(q));
  return results;
}

std::tuple<Tensor, Tensor, Tensor> kept_cuda(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta,
    OptionalScale scale, const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
    const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm, bool beta_sigmoid,
    bool allow_neg_eigval, bool state_v_first, bool reverse, std::string_view mode,
    bool output_final_state) {
  const c10::cuda::CUDAGuard guard(q.device());
  GatedDeltaRuleCall call(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias,
                          qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode);
  check_gpu(call.problem);
  GatedDeltaRuleSize size = size_of(call.problem);
  const bool packed = call.problem.packed;
  size.kept_states = gpu_kept_states(size, packed, gpu_piece(size, packed)) > 0;
  const auto plan = plan_with_room(size, packed, Pass::kForward, output_final_state, gpu_of(q));
  const Tensor states = gated_delta_rule_states(q, v, cu_seqlens, mode);
  if (size.kept_states) call.problem.states = view_of("gated_delta_rule", "states", states);
  const auto [o, final_state] = run_forward(call, plan, q, v, output_final_state);
  return {o, final_state, states};
}

std::tuple<Tensor, Tensor> forward_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                                        const Tensor& g, const Tensor& beta, OptionalScale scale,
                                        const OptionalTensor& initial_state,
                                        const OptionalTensor& cu_seqlens,
                                        const OptionalTensor& A_log, const OptionalTensor& dt_bias,
                                        bool qk_l2norm, bool beta_sigmoid, bool allow_neg_eigval,
                                        bool state_v_first, bool reverse, std::string_view mode,
                                        bool output_final_state) {
  const c10::cuda::CUDAGuard guard(q.device());
  GatedDeltaRuleCall call(q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias,
                          qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, reverse, mode);
  check_gpu(call.problem);
  const auto plan = plan_with_room(size_of(call.problem), call.problem.packed, Pass::kForward,
                                   output_final_state, gpu_of(q));
  return run_forward(call, plan, q, v, output_final_state);
}

GatedDeltaRuleTensors8 backward_cuda(
    const OptionalTensor& grad_o, const OptionalTensor& grad_final_state, const Tensor& q,
    const Tensor& k, const Tensor& v, const Tensor& g, const Tensor& beta, OptionalScale scale,
    const OptionalTensor& initial_state, const OptionalTensor& cu_seqlens,
    const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm, bool beta_sigmoid,
    bool allow_neg_eigval, bool state_v_first, bool reverse, const OptionalTensor& states) {
  const c10::cuda::CUDAGuard guard(q.device());
  const GatedDeltaRuleBackwardCall call(
      grad_o, grad_final_state, q, k, v, g, beta, scale, initial_state, cu_seqlens, A_log, dt_bias,
      qk_l2norm, beta_sigmoid, allow_neg_eigval, state_v_first, reverse, states);
  check_gpu(call.problem);
  check_gpu(call.gradients);
  const Running pass(plan_with_room(size_of(call.problem), call.problem.packed, Pass::kBackward,
                                    /*output_final_state=*/false, gpu_of(q)),
                     q);
  backward(call.problem, call.gradients, pass.plan, bytes_of(pass.workspace), current_stream(q));
  return call.results;
}

Tensor step_cuda(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                 const Tensor& beta, Tensor& pool, const Tensor& slots, OptionalScale scale,
                 const OptionalTensor& A_log, const OptionalTensor& dt_bias, bool qk_l2norm,
                 bool beta_sigmoid, bool allow_neg_eigval, bool state_v_first) {
  const c10::cuda::CUDAGuard guard(q.device());
  const GatedDeltaRuleStepCall call(q, k, v, g, beta, pool, slots, scale, A_log, dt_bias, qk_l2norm,
                                    beta_sigmoid, allow_neg_eigval, state_v_first);
  check_gpu(call.problem);
  step(call.problem, current_stream(q));
  count_version(pool);
  return call.o;
}

TORCH_LIBRARY_IMPL(linescan, CUDA, m) {
  m.impl("gated_delta_rule", forward_cuda);
  m.impl("gated_delta_rule_kept", kept_cuda);
  m.impl("gated_delta_rule_backward", backward_cuda);
  m.impl("gated_delta_rule_step", step_cuda);
}

}  // namespace
}  // namespace linescan
