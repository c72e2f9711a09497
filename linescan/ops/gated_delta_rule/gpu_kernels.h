// The launchers of gated_delta_rule's kernels, in the order in which a pass calls them. No checks, no
// allocation; `workspace` as the plan lays it out. Every kernel's file says what it does.
#pragma once

#include "linescan/ops/device_code/dispatch.cuh"
#include "linescan/ops/gated_delta_rule/gated_delta_rule.h"
#include "linescan/ops/gated_delta_rule/gpu_tokens.cuh"

namespace linescan {

struct DeltaSegments;  // gpu_segments.cuh

// Of a problem, or of a piece of one: the records of its chunks, and what a forward pass keeps, turned transitions from its
// second segment on, and states from the end of its first one on; of a first piece the states and corrections of its chunks
// (gpu_kept_states()). Null: nothing.
struct DeltaKept {
  std::byte* records;
  float *turned = nullptr, *boundaries = nullptr;
  std::byte *states = nullptr, *corrections = nullptr;
};

// Sane bounds at the start of the workspace, if sequences are packed.
void launch_delta_bounds(const GatedDeltaRuleProblem& problem, std::byte* workspace,
                         GpuStream stream);
void launch_delta_records(const GatedDeltaRuleProblem& problem, const GatedDeltaRuleGpuPlan& plan,
                          const DeltaKept& kept, std::byte* workspace, GpuStream stream);
// Outputs and final states, and what is kept; in a backward pass states and corrections u instead.
void launch_delta_scan(const GatedDeltaRuleProblem& problem, const GatedDeltaRuleGpuPlan& plan,
                       const DeltaKept& kept, std::byte* workspace, GpuStream stream);
void launch_delta_reverse_scan(const GatedDeltaRuleProblem& problem,
                               const GatedDeltaRuleGradients& gradients,
                               const GatedDeltaRuleGpuPlan& plan, const DeltaKept& kept,
                               std::byte* workspace, GpuStream stream);
// States at the boundaries of segments from what their walks alone left there; in a backward pass gradients.
void launch_delta_chain(const GatedDeltaRuleProblem& problem, const GatedDeltaRuleGpuPlan& plan,
                        const DeltaSegments& segments, std::byte* workspace, GpuStream stream);
void launch_delta_gradients(const GatedDeltaRuleProblem& problem,
                            const GatedDeltaRuleGradients& gradients,
                            const GatedDeltaRuleGpuPlan& plan, const DeltaKept& kept,
                            std::byte* workspace, GpuStream stream);
// Everything at once, where the plan gives whole sequences to warps.
void launch_delta_sequence_forward(const GatedDeltaRuleProblem& problem,
                                   const GatedDeltaRuleGpuPlan& plan, std::byte* workspace,
                                   GpuStream stream);
void launch_delta_sequence_backward(const GatedDeltaRuleProblem& problem,
                                    const GatedDeltaRuleGradients& gradients,
                                    const GatedDeltaRuleGpuPlan& plan, std::byte* workspace,
                                    GpuStream stream);
void launch_delta_recurrence(const GatedDeltaRuleProblem& problem,
                             const GatedDeltaRuleGpuPlan& plan, std::byte* workspace,
                             GpuStream stream);

inline DeltaSequences delta_sequences(const GatedDeltaRuleProblem& p, std::byte* workspace) {
  return {p.packed ? reinterpret_cast<const int64_t*>(workspace) : nullptr, size_of(p).sequences,
          p.q.shape[1], p.reverse};
}

// [chunks (whole_sequences: sequences), 2, value_heads]: terms of the gradients of A_log and dt_bias.
inline float* delta_parameter_sums(const GatedDeltaRuleGpuPlan& plan, std::byte* workspace) {
  return reinterpret_cast<float*>(workspace + plan.parameter_sums_at);
}

// Of the states of `sequences` sequences.
inline Shape gpu_state_shape(const GatedDeltaRuleProblem& p, int64_t sequences) {
  const int64_t K = p.q.shape[3], V = p.v.shape[3];
  const bool v_first = p.inputs.state_v_first;
  return {sequences, p.v.shape[2], v_first ? V : K, v_first ? K : V};
}

// Numbers of segments of a problem's batch items, or of a piece's (gpu_segments.cuh).
inline int64_t delta_segment_count(const GatedDeltaRuleProblem& p,
                                   const GatedDeltaRuleGpuPlan& plan) {
  return delta_segment_count(size_of(p), p.packed, plan.piece);
}

inline LaunchShape shape_of(const DeltaLaunch& launch) {
  return {launch.grid, static_cast<int>(launch.block), launch.shared_bytes};
}

// Calls function.operator()<kKeys>() for the plan's padded_keys.
template <class Function>
void dispatch_keys(int64_t padded_keys, const Function& function) {
  switch (padded_keys) {
    case 32:
      return function.template operator()<32>();
    case 64:
      return function.template operator()<64>();
    case 128:
      return function.template operator()<128>();
    case 256:
      return function.template operator()<256>();
    default:
      return function.template operator()<512>();
  }
}
// The same with the storage type in front.
template <class Function>
void dispatch_delta(DType dtype, int64_t padded_keys, const Function& function) {
  dispatch_data(dtype, [&]<typename T>() {
    dispatch_keys(padded_keys, [&]<int kKeys>() { function.template operator()<T, kKeys>(); });
  });
}

}  // namespace linescan
