// gated_delta_rule for CUDA tensors; schema and autograd are in binding/gated_delta_rule.cpp.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>

#include "linescan/base/activity.h"
#include "linescan/base/out_of_memory.h"
#include "linescan/binding/cuda/gpu_tensors.h"
#include "linescan/binding/gated_delta_rule_call.h"
#include "linescan/binding/tensors.h"

namespace linescan {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OptionalScale = std::optional<double>;

namespace allocator = c10::cuda::CUDACachingAllocator;

// The memory of the current device, in bytes.
struct DeviceMemory {
  c10::DeviceIndex device = c10::cuda::current_device();
  double share = 1;   // of the device that the program allows itself
  int64_t taken = 0;  // by tensors
  int64_t kept = 0;   // by the allocator, for tensors to come; in graphs' own pools, for theirs

  DeviceMemory() {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator::getDeviceStats(device);
    taken = stats.allocated_bytes[kAll].current;
    kept = stats.reserved_bytes[kAll].current - taken;
    share = std::min(1.0, allocator::getMemoryFraction(device));
  }

  // Of so much memory, what the program's share has left.
  int64_t left_of(std::size_t total) const {
    return std::max<int64_t>(static_cast<int64_t>(share * static_cast<double>(total)) - taken, 0);
  }

  // What tensors to come may have.
  int64_t available() const {
    std::size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return std::min(static_cast<int64_t>(free) + kept, left_of(total));
  }
};

// A pass, as far as the memory that it takes is concerned.
struct MemoryDemand {
  GatedDeltaRuleSize size;
  bool packed = false;
  Pass pass = Pass::kForward;
  // Of a forward pass: states to start from and to leave, and a backward pass that will come.
  bool initial_state = false, final_state = false, differentiated = false;
};

// The sizes of a forward pass that keeps what its backward pass wants to have kept.
GatedDeltaRuleSize with_kept_states(GatedDeltaRuleSize size, bool packed) {
  size.kept_states = gpu_kept_states(size, packed, gpu_piece(size, packed)) > 0;
  return size;
}

// Bytes beside what the pass is given; a backward pass has its results already. A forward pass with
// a backward pass to come needs what that will need, too, so that a step of training is refused as
// a whole and not in its middle.
int64_t needed_bytes(const MemoryDemand& demand, const GatedDeltaRuleGpuPlan& plan,
                     const Gpu& gpu) {
  if (demand.pass == Pass::kBackward) return plan.workspace_bytes;
  const GatedDeltaRuleSize& size = demand.size;
  const int64_t number = size_of(size.dtype), rows = size.batch * size.length;
  const int64_t o = rows * size.value_heads * size.V * number;  // the gradient of v has as many
  const int64_t states = size.sequences * size.value_heads * size.K * size.V * 4;
  int64_t passing = plan.workspace_bytes;
  if (demand.differentiated) {
    GatedDeltaRuleSize later = size;
    later.mode = GatedDeltaRuleMode::kAuto;  // a backward pass has no other
    const int64_t of_gates = 2 * rows * size.value_heads * 4;
    const int64_t gradients = 2 * rows * size.heads * size.K * number + o + of_gates +
                              (demand.initial_state ? states : 0);
    const auto backward = linescan::plan(later, demand.packed, Pass::kBackward, gpu);
    passing = std::max(passing, gradients + backward.workspace_bytes);
  }
  return plan.kept_bytes + o + (demand.final_state ? states : 0) + passing;
}

// The most of a problem's batch, fewer than there are, for which so many bytes are enough; packed, of its tokens, in steps of 64.
// What a pass needs does not always grow with the batch, so that all are tried from above, of very many some thousand.
int64_t fitting_count(const MemoryDemand& demand, int64_t bytes, const Gpu& gpu) {
  const int64_t count = demand.packed ? demand.size.length : demand.size.batch;
  const int64_t step = std::max<int64_t>(demand.packed ? 64 : 1, count / 8192);
  for (int64_t fewer = (count - 1) / step * step; fewer > 0; fewer -= step) {
    MemoryDemand part = demand;
    if (demand.packed)
      part.size.length = fewer;
    else
      part.size.batch = part.size.sequences = fewer;
    if (demand.differentiated || demand.size.kept_states)
      part.size = with_kept_states(part.size, demand.packed);
    const auto plan = linescan::plan(part.size, part.packed, part.pass, gpu);
    if (needed_bytes(part, plan, gpu) <= bytes) return fewer;
  }
  return 0;
}

// A pass's plan. Refuses before anything is launched what would run out of memory in the middle of
// it, and says what would fit.
GatedDeltaRuleGpuPlan plan_with_room(const MemoryDemand& demand, const Gpu& gpu) {
  const GatedDeltaRuleSize& size = demand.size;
  const GatedDeltaRuleGpuPlan plan = linescan::plan(size, demand.packed, demand.pass, gpu);
  const int64_t bytes = needed_bytes(demand, plan, gpu);
  if (bytes < gpu.memory_bytes / 1024) return plan;   // next to nothing
  if (allocator::name() == "pluggable") return plan;  // the program's own: it tells nothing
  const DeviceMemory memory;
  // The driver is slow to answer. It is not asked where the allocator keeps as much, as from the second step of a training
  // on, or where it is little beside what tensors leave over.
  if (bytes <= std::max(memory.kept, memory.left_of(gpu.memory_bytes) / 16)) return plan;
  const int64_t available = memory.available();
  if (bytes <= available) return plan;
  // The allocator rounds, and gaps between tensors stay empty: what is advised leaves a 32nd free.
  const int64_t fitting = fitting_count(demand, available - available / 32, gpu);
  const std::string advice =
      fitting == 0    ? "shorter sequences or fewer heads would fit"
      : demand.packed ? fmt::format("about {} of {} tokens would fit", fitting, size.length)
                      : fmt::format("a batch of {} would fit", fitting);
  throw OutOfMemory(
      fmt::format("gated_delta_rule: q [{}, {}, {}, {}] with {} value heads of V = {} needs {} "
                  "bytes beside what it is given{}, {} are free; {}",
                  size.batch, size.length, size.heads, size.K, size.value_heads, size.V, bytes,
                  demand.differentiated ? " (backward pass included)" : "", available, advice),
      demand.packed ? 0 : fitting);
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
  const bool packed = call.problem.packed;
  const MemoryDemand demand = {.size = with_kept_states(size_of(call.problem), packed),
                               .packed = packed,
                               .initial_state = given(initial_state),
                               .final_state = output_final_state,
                               .differentiated = true};
  const auto plan = plan_with_room(demand, gpu_of(q));
  const Tensor states = gated_delta_rule_states(q, v, cu_seqlens, mode);
  if (demand.size.kept_states) call.problem.states = view_of("gated_delta_rule", "states", states);
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
  const auto plan = plan_with_room({.size = size_of(call.problem),
                                    .packed = call.problem.packed,
                                    .final_state = output_final_state},
                                   gpu_of(q));
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
  const auto plan = plan_with_room(
      {.size = size_of(call.problem), .packed = call.problem.packed, .pass = Pass::kBackward},
      gpu_of(q));
  const Running pass(plan, q);
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
