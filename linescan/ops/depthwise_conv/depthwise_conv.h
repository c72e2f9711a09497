// The door of depthwise_conv: a 3x3 convolution of every channel by itself, stride 1, borders filled
// with zeros, perhaps followed by SiLU. Equations and gradients: README.md. Kernels for GPUs; on the
// CPU the binding uses LibTorch's own.
//
//   check(problem)                 throws InvalidArgument; everything below trusts its input
//   plan(size, pass, gpu)          a value to print and compare (gpu_plan.h)
//   forward / backward             start the kernels; no checks, no allocation, nothing waits
//   reference_forward / _backward  the definition, in double, with an error bound for every number
#pragma once

#include <cstddef>

#include "linescan/base/tensor_view.h"
#include "linescan/ops/depthwise_conv/gpu_plan.h"
#include "linescan/ops/gpu_stream.h"
#include "linescan/ops/judged.h"

namespace linescan {

// Contiguous. T: float32, float16, bfloat16, one for x and out.
struct DepthwiseConvProblem {
  TensorView x;       // T [batch, height, width, channels]
  TensorView weight;  // float32 [channels, 3, 3]
  TensorView bias;    // float32 [channels], optional
  bool silu = true;

  TensorView out;  // T [batch, height, width, channels]
};

struct DepthwiseConvGradients {
  TensorView out;           // T, upstream
  TensorView x;             // T, results from here on
  TensorView weight, bias;  // float32; an undefined bias is not wanted
};

DepthwiseConvSize size_of(const DepthwiseConvProblem& problem);
// With the gradients' addresses, for the plan of the backward pass.
DepthwiseConvSize size_of(const DepthwiseConvProblem& problem,
                          const DepthwiseConvGradients& gradients);

// Throws InvalidArgument naming the first argument that does not fit.
void check(const DepthwiseConvProblem& problem);

// All pointers are device memory; `workspace` has plan.workspace_bytes at a 16-byte boundary.
void forward(const DepthwiseConvProblem& problem, const DepthwiseConvGpuPlan& plan,
             std::byte* workspace, GpuStream stream);
void backward(const DepthwiseConvProblem& problem, const DepthwiseConvGradients& gradients,
              const DepthwiseConvGpuPlan& plan, std::byte* workspace, GpuStream stream);

struct DepthwiseConvJudge {
  Judged out;              // forward
  Judged x, weight, bias;  // backward
};
DepthwiseConvJudge reference_forward(const DepthwiseConvProblem& problem);
DepthwiseConvJudge reference_backward(const DepthwiseConvProblem& problem,
                                      const DepthwiseConvGradients& gradients);

}  // namespace linescan
