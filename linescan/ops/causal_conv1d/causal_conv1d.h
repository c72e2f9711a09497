// The door of causal_conv1d: every channel by itself is convolved along time with a short kernel that
// looks back only, perhaps followed by SiLU; sequences may be packed, and states carry the last
// numbers from call to call. Equations and gradients: README.md.
//
//   check(problem)                 throws InvalidArgument; everything below trusts its input
//   plan(size, pass, threads)      a value to print and compare (plan.h); gpu_plan.h has the GPU's
//   forward / backward             fill the outputs; no checks, no allocation
//   reference_forward / _backward  the definition, in double, with an error bound for every number
#pragma once

#include <cstddef>

#include "linescan/base/tensor_view.h"
#include "linescan/ops/causal_conv1d/gpu_plan.h"
#include "linescan/ops/causal_conv1d/plan.h"
#include "linescan/ops/gpu_stream.h"
#include "linescan/ops/judged.h"

namespace linescan {

struct ParallelFor;

// T: float32, float16, bfloat16, float64, one for x, out and the states; any strides (unit stride
// along the channels is fast). P: float32, or float64 when T is float64; contiguous.
//
// Without offsets every batch item is a sequence. With offsets [sequences + 1], int64, batch is 1 and
// sequence s is the tokens offsets[s] .. offsets[s + 1] - 1; tokens of no sequence give zeros.
// Offsets that fall or leave [0, length] are the caller's error: results are unspecified then, but
// nothing outside the tensors is touched.
struct CausalConv1dProblem {
  TensorView x;              // T [batch, length, channels]
  TensorView weight;         // P [channels, width], the newest token's last
  TensorView bias;           // P [channels], optional
  TensorView initial_state;  // T [sequences, channels, width - 1], optional: zero; newest last
  const int64_t* offsets = nullptr;
  int64_t sequences = 0;  // with offsets: how many
  bool silu = true;

  TensorView out;          // T [batch, length, channels]
  TensorView final_state;  // T like initial_state, optional; may be the memory of initial_state
};

// Upstream gradients and where to put the results. An undefined upstream is zero; an undefined
// result is not wanted, except for x, which is always there.
struct CausalConv1dGradients {
  TensorView out, final_state;  // upstream
  TensorView x, weight, bias, initial_state;
};

CausalConv1dSize size_of(const CausalConv1dProblem& problem);

// Throws InvalidArgument naming the first argument that does not fit. A step has names of its own for
// the operator and for initial_state.
void check(const CausalConv1dProblem& problem, const char* op = "causal_conv1d",
           const char* state = "initial_state");

// `workspace`: plan.workspace_bytes at a 64-byte boundary. With the plan of the same pass.
void forward(const CausalConv1dProblem& problem, const CausalConv1dPlan& plan, std::byte* workspace,
             const ParallelFor& parallel_for);
void backward(const CausalConv1dProblem& problem, const CausalConv1dGradients& gradients,
              const CausalConv1dPlan& plan, std::byte* workspace, const ParallelFor& parallel_for);

// The same on a GPU, for problems that check() and check_gpu() accept: every pointer, `workspace`'s
// and the offsets' too, is memory of the current device. Work is put on the stream, nothing waits,
// two runs give identical bits. gpu_size_of looks at addresses and strides of `gradients` as well.
// check_gpu throws Unsupported for float64 and for sizes that the kernels cannot count.
void check_gpu(const CausalConv1dProblem& problem);
CausalConv1dGpuSize gpu_size_of(const CausalConv1dProblem& problem,
                                const CausalConv1dGradients& gradients = {});
void forward(const CausalConv1dProblem& problem, const CausalConv1dGpuPlan& plan,
             std::byte* workspace, GpuStream stream);
void backward(const CausalConv1dProblem& problem, const CausalConv1dGradients& gradients,
              const CausalConv1dGpuPlan& plan, std::byte* workspace, GpuStream stream);

struct CausalConv1dJudge {
  Judged out, final_state;                // forward
  Judged x, weight, bias, initial_state;  // backward
};
CausalConv1dJudge reference_forward(const CausalConv1dProblem& problem);
CausalConv1dJudge reference_backward(const CausalConv1dProblem& problem,
                                     const CausalConv1dGradients& gradients);

}  // namespace linescan
