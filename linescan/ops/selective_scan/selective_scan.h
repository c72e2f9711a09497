// The door of selective_scan (S6, arXiv:2312.00752). Equations and gradients: README.md.
//
//   check(problem)                 throws InvalidArgument; everything below trusts its input
//   plan(size, pass, threads)      a value to print and compare (plan.h); gpu_plan.h has the GPU's
//   forward / backward             fill the outputs; no checks, no allocation
//   reference_forward / _backward  the definition, in double, with an error bound for every number
#pragma once

#include <cstddef>

#include "linescan/base/tensor_view.h"
#include "linescan/ops/gpu_stream.h"
#include "linescan/ops/judged.h"
#include "linescan/ops/selective_scan/gpu_plan.h"
#include "linescan/ops/selective_scan/plan.h"

namespace linescan {

struct ParallelFor;

// Absent optional tensors are undefined views. T: float32, float16, bfloat16, float64, one for all
// of u, delta, B, C, z. P: float32, or float64 when T is float64. Strides of T tensors are free
// (unit stride along channels or along length is fast); P tensors are contiguous.
struct SelectiveScanProblem {
  TensorView u, delta;       // T [batch, channels, length]
  TensorView A;              // P [channels, states]
  TensorView B, C;           // T [batch, groups, states, length], or [channels, states]: constant
  TensorView D, delta_bias;  // P [channels], optional
  TensorView z;              // T [batch, channels, length], optional: out = y * silu(z)
  TensorView initial_state;  // P [batch, channels, states], optional: zero
  bool delta_softplus = false;

  TensorView out;         // any type [batch, channels, length]
  TensorView last_state;  // P [batch, channels, states]; may be the memory of initial_state

  // GPUs, optional: float32 [gpu_kept_states(size)], filled by the forward pass and read by the
  // backward pass, which else walks all steps once more to find them again.
  TensorView states{};

  // GPUs, optional: int32 [groups, length], a permutation a group: step t of the group lies at
  // order[group, t] along the length of every tensor. u and the gradient of out may then have the
  // channels of one group, which all groups read. Several states, no gate, B and C that vary.
  const int32_t* order = nullptr;
};

// Upstream gradients and where to put the results. An undefined upstream is zero; an undefined
// result is not wanted. Every result has the type and the sizes of its input.
struct SelectiveScanGradients {
  TensorView out, last_state;  // upstream
  TensorView u, delta, A, B, C, D, delta_bias, z, initial_state;
};

SelectiveScanSize size_of(const SelectiveScanProblem& problem);

// Throws InvalidArgument naming the first argument that does not fit. A step has names of its own for
// the operator and for initial_state.
void check(const SelectiveScanProblem& problem, const char* op = "selective_scan",
           const char* state = "initial_state");

// `workspace`: plan.workspace_bytes at a 64-byte boundary. With the plan of the same pass.
void forward(const SelectiveScanProblem& problem, const SelectiveScanPlan& plan,
             std::byte* workspace, const ParallelFor& parallel_for);
void backward(const SelectiveScanProblem& problem, const SelectiveScanGradients& gradients,
              const SelectiveScanPlan& plan, std::byte* workspace, const ParallelFor& parallel_for);

// The same on a GPU, for problems that check() and check_gpu() accept: every pointer, `workspace`'s
// too (256-byte boundary), is memory of the current device. Work is put on the stream, nothing waits,
// nothing is allocated, two runs give identical bits. `last_state` may be undefined here.
// check_gpu throws Unsupported for float64 and for sizes that the kernels cannot count, InvalidArgument for P
// tensors that are not contiguous; those among the gradients have to be as well, unasked.
void check_gpu(const SelectiveScanProblem& problem);
void forward(const SelectiveScanProblem& problem, const SelectiveScanGpuPlan& plan,
             std::byte* workspace, GpuStream stream);
void backward(const SelectiveScanProblem& problem, const SelectiveScanGradients& gradients,
              const SelectiveScanGpuPlan& plan, std::byte* workspace, GpuStream stream);

struct SelectiveScanJudge {
  Judged out, last_state;                                     // forward
  Judged u, delta, A, B, C, D, delta_bias, z, initial_state;  // backward
};
// softplus_size: by how much the size of every softplus is larger, for kernels whose softplus has an absolute error.
SelectiveScanJudge reference_forward(const SelectiveScanProblem& problem, double softplus_size = 0);
SelectiveScanJudge reference_backward(const SelectiveScanProblem& problem,
                                      const SelectiveScanGradients& gradients,
                                      double softplus_size = 0);

}  // namespace linescan
