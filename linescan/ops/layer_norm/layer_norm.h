// The door of layer_norm (Ba et al. 2016, arXiv:1607.06450) over the last dimension. Equations and
// gradients: README.md. Kernels for GPUs; on the CPU the binding uses LibTorch's own.
//
//   check(problem)                 throws InvalidArgument; everything below trusts its input
//   plan(size, pass, gpu)          a value to print and compare (gpu_plan.h)
//   forward / backward             start the kernels; no checks, no allocation, nothing waits
//   reference_forward / _backward  the definition, in double, with an error bound for every number
#pragma once

#include <cstddef>

#include "linescan/base/tensor_view.h"
#include "linescan/ops/gpu_stream.h"
#include "linescan/ops/judged.h"
#include "linescan/ops/layer_norm/gpu_plan.h"

namespace linescan {

// Contiguous. x and out have types of their own among float32, float16, bfloat16.
struct LayerNormProblem {
  TensorView x;             // [rows, channels]
  TensorView weight, bias;  // float32 [channels], optional: 1 and 0
  double epsilon = 1e-5;

  TensorView out;         // [rows, channels]
  TensorView mean, rstd;  // float32 [rows]: results of forward, inputs of backward
};

struct LayerNormGradients {
  TensorView out;   // upstream, of any of the types
  TensorView skip;  // optional, of x's type and shape: added to the gradient of x
  TensorView x;     // results; weight and bias go together, undefined: not wanted
  TensorView weight, bias;
};

LayerNormSize size_of(const LayerNormProblem& problem);
// With the gradients' types and addresses, for the plan of the backward pass.
LayerNormSize size_of(const LayerNormProblem& problem, const LayerNormGradients& gradients);

// Throws InvalidArgument naming the first argument that does not fit.
void check(const LayerNormProblem& problem);

// All pointers are device memory; `workspace` has plan.workspace_bytes at a 16-byte boundary.
void forward(const LayerNormProblem& problem, const LayerNormGpuPlan& plan, std::byte* workspace,
             GpuStream stream);
void backward(const LayerNormProblem& problem, const LayerNormGradients& gradients,
              const LayerNormGpuPlan& plan, std::byte* workspace, GpuStream stream);

struct LayerNormJudge {
  Judged out, mean, rstd;  // forward
  Judged x, weight, bias;  // backward
};
LayerNormJudge reference_forward(const LayerNormProblem& problem);
LayerNormJudge reference_backward(const LayerNormProblem& problem,
                                  const LayerNormGradients& gradients);

}  // namespace linescan
