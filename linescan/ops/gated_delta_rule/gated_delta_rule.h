// The door of gated_delta_rule (arXiv:2412.06464) and of its one-token step. Equations and gradients:
// README.md.
//
//   check(problem)                 throws InvalidArgument; everything below trusts its input
//   plan(size, pass, threads)      a value to print and compare (plan.h)
//   forward / backward / step      fill the outputs; no checks, no allocation
//   reference_forward / _backward  the definition, in double, with an error bound for every number
#pragma once

#include <cstddef>
#include <cstdint>

#include "linescan/base/tensor_view.h"
#include "linescan/ops/gated_delta_rule/gpu_plan.h"
#include "linescan/ops/gated_delta_rule/plan.h"
#include "linescan/ops/gpu_stream.h"
#include "linescan/ops/judged.h"

namespace linescan {

struct ParallelFor;

// Largest K and V: a state of 512 x 512 is 1 MiB.
inline constexpr int64_t kGatedDeltaRuleLargestHead = 512;

// What inputs go through on their way in; the same for whole sequences and single steps.
struct GatedDeltaRuleInputs {
  TensorView A_log;           // P [value_heads], optional: g <- -exp(A_log) softplus(g + dt_bias)
  TensorView dt_bias;         // P [value_heads], optional, with A_log only
  double scale = 1;           // of q
  bool qk_l2norm = false;     // x <- x / sqrt(sum x^2 + 1e-6), for q and k
  bool beta_sigmoid = false;  // beta <- sigmoid(beta)
  bool allow_neg_eigval = false;  // doubled; with beta_sigmoid only
  bool state_v_first = false;     // states are [.., V, K] instead of [.., K, V]
};

// Absent optional tensors are undefined views. T: float32, float16, bfloat16, float64. P: float32, or
// float64 when T is float64. Strides are free but for the last dimension of q, k, v and o, which is
// contiguous.
struct GatedDeltaRuleProblem {
  TensorView q, k;           // T [batch, length, heads, K]
  TensorView v;              // T [batch, length, value_heads, V]; heads divide value_heads
  TensorView g;              // P [batch, length, value_heads]
  TensorView beta;           // T or P [batch, length, value_heads]
  TensorView initial_state;  // P [sequences, value_heads, K, V], optional: zero
  GatedDeltaRuleInputs inputs;

  // Packed sequences: batch is 1, sequence i owns the tokens from bounds[i] to bounds[i + 1]. Every
  // bound counts as at least 0, at most `length` and no less than the one before it. Tokens of no sequence give zeros.
  // Not packed: sequences = batch.
  bool packed = false;
  const int64_t* bounds = nullptr;  // [packed_sequences + 1]
  int64_t packed_sequences = 0;

  bool reverse = false;  // from the last token of a sequence to its first
  GatedDeltaRuleMode mode = GatedDeltaRuleMode::kAuto;

  TensorView o;            // T [batch, length, value_heads, V]
  TensorView final_state;  // P, optional, the shape of initial_state, whose memory it may be

  // GPUs, optional: float32 [gpu_kept_states(size, packed, gpu_piece(size, packed))], contiguous, at a multiple of 16 bytes; filled
  // by a forward pass in chunks and read by the backward pass, which then needs less memory, finds states side by side, and does
  // not make records, or states of its first piece, again where these are kept.
  TensorView states;
};

// Upstream gradients and where to put the results. An undefined upstream is zero; an undefined result
// is not wanted (on a GPU v's has to be there: other numbers wait in it). Every result has the type and the
// sizes of its input.
struct GatedDeltaRuleGradients {
  TensorView o, final_state;  // upstream
  TensorView q, k, v, g, beta, initial_state, A_log, dt_bias;
};

GatedDeltaRuleSize size_of(const GatedDeltaRuleProblem& problem);

// Throws InvalidArgument naming the first argument that does not fit.
void check(const GatedDeltaRuleProblem& problem);

// `workspace`: plan.workspace_bytes at a 64-byte boundary. With the plan of the same pass.
void forward(const GatedDeltaRuleProblem& problem, const GatedDeltaRulePlan& plan,
             std::byte* workspace, const ParallelFor& parallel_for);
void backward(const GatedDeltaRuleProblem& problem, const GatedDeltaRuleGradients& gradients,
              const GatedDeltaRulePlan& plan, std::byte* workspace,
              const ParallelFor& parallel_for);

// The same on a GPU, for problems that check() and check_gpu() accept: every pointer, those of the workspace
// and of bounds too, is memory of the current device. Work is put on the stream, nothing waits, two runs
// give identical bits. A_log and dt_bias are contiguous. check_gpu throws Unsupported for float64 and for
// sizes that the kernels cannot count, InvalidArgument without room for the gradient of v.
void check_gpu(const GatedDeltaRuleProblem& problem);
void check_gpu(const GatedDeltaRuleGradients& gradients);
void forward(const GatedDeltaRuleProblem& problem, const GatedDeltaRuleGpuPlan& plan,
             std::byte* workspace, GpuStream stream);
void backward(const GatedDeltaRuleProblem& problem, const GatedDeltaRuleGradients& gradients,
              const GatedDeltaRuleGpuPlan& plan, std::byte* workspace, GpuStream stream);

struct GatedDeltaRuleJudge {
  Judged o, final_state;                                   // forward
  Judged q, k, v, g, beta, initial_state, A_log, dt_bias;  // backward
};
GatedDeltaRuleJudge reference_forward(const GatedDeltaRuleProblem& problem);
GatedDeltaRuleJudge reference_backward(const GatedDeltaRuleProblem& problem,
                                       const GatedDeltaRuleGradients& gradients);

// One token for each of `tokens` sequences whose states lie in slots of a pool and advance in place.
struct GatedDeltaRuleStepProblem {
  TensorView q, k;     // T [tokens, heads, K]
  TensorView v;        // T [tokens, value_heads, V]
  TensorView g, beta;  // P, T or P [tokens, value_heads]
  TensorView pool;     // P [slots, value_heads, K, V], contiguous in K and V
  // [tokens]: where in the pool the state of each token's sequence is, none twice. Numbers outside the
  // pool stand for no sequence: the output is zero, no state changes.
  const int64_t* slots = nullptr;
  GatedDeltaRuleInputs inputs;

  TensorView o;  // T [tokens, value_heads, V]
};
void check(const GatedDeltaRuleStepProblem& problem);
void step(const GatedDeltaRuleStepProblem& problem, const ParallelFor& parallel_for);
void check_gpu(const GatedDeltaRuleStepProblem& problem);
void step(const GatedDeltaRuleStepProblem& problem, GpuStream stream);

}  // namespace linescan
