// gated_delta_rule for CUDA tensors; schema and autograd are in binding/gated_delta_rule.cpp.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>

#include "linescan/base/activity.h"
#include "linescan/base/math.h"
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
  int64_t taken = 0;  // by tensors
  int64_t kept = 0;   // by the allocator, for tensors to come

  DeviceMemory() {
    constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto stats = allocator::getDeviceStats(device);
    taken = stats.allocated_bytes[kAll].current;
    kept = stats.reserved_bytes[kAll].current - taken;
  }

  // What tensors to come may have: of the device, and of the share of it that the program allows
  // itself.
  int64_t available() const {
    std::size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const double share = std::min(1.0, allocator::getMemoryFraction(device));
    const int64_t allowed = static_cast<int64_t>(share * static_cast<double>(total)) - taken;
    return std::max<int64_t>(std::min(static_cast<int64_t>(free) + kept, allowed), 0);
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

// The most of a problem's batch for which so many bytes are enough; packed, of its tokens, in steps
// of 64.
int64_t fitting_count(const MemoryDemand& demand, int64_t bytes, const Gpu& gpu) {
  const int64_t step = demand.packed ? 64 : 1;
  const auto fits = [&](int64_t count) {
    MemoryDemand part = demand;
    if (demand.packed)
      part.size.length = count;
    else
      part.size.batch = part.size.sequences = count;
    if (demand.differentiated || demand.size.kept_states)
      part.size = with_kept_states(part.size, demand.packed);
    const auto plan = linescan::plan(part.size, part.packed, part.pass, gpu);
    return needed_bytes(part, plan, gpu) <= bytes;
  };
  const int64_t count = demand.packed ? demand.size.length : demand.size.batch;
  int64_t fitting = 0, too_many = ceil_div(count, step);
  while (too_many - fitting > 1) {
    const int64_t middle = fitting + (too_many - fitting) / 2;
    (fits(middle * step) ? fitting : too_many) = middle;
  }
  return fitting * step;
}

// A pass's plan. Refuses before anything is launched what would run out of memory in the middle of
// it, and says what would fit.
GatedDeltaRuleGpuPlan plan_with_room(const MemoryDemand& demand, const Gpu& gpu) {
  const GatedDeltaRuleSize& size = demand.size;
  const GatedDeltaRuleGpuPlan plan = linescan::plan(size, demand.packed, demand.pass, gpu);
  if (allocator::name() == "pluggable") return plan;  // the program's own: it tells nothing
  const int64_t bytes = needed_bytes(demand, plan, gpu);
  const DeviceMemory memory;
  // The driver takes 10 to 50 us to answer. It is not asked where the allocator keeps as much, as
  // from the second step of a training on, or where it is little beside what tensors leave over.
  if (bytes <= std::max(memory.kept, (gpu.memory_bytes - memory.taken) / 16)) return plan;
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
