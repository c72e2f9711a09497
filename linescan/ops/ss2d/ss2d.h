// The door of ss2d: cross-scan, a selective scan a route, cross-merge (VMamba, arXiv:2401.10166).
// Equations and gradients: README.md.
//
// The projection of x is one large matrix product that commutes with every route's order of pixels;
// it belongs to the caller, comes in as `projection` and goes out as its gradient.
#pragma once

#include <cstddef>
#include <functional>

#include "linescan/base/tensor_view.h"
#include "linescan/ops/gpu_stream.h"
#include "linescan/ops/judged.h"
#include "linescan/ops/ss2d/gpu_plan.h"
#include "linescan/ops/ss2d/plan.h"

namespace linescan {

struct ParallelFor;

// K routes, R = dt rank, N = states. T: float32, float16, bfloat16 or float64, of x and projection;
// P: float32, or float64 when T is float64. All but x, out are contiguous; x and out may have any
// strides whose rows are evenly spaced (unit stride along channels is fastest).
struct Ss2dProblem {
  TensorView x;           // T [batch, channels, height, width]
  TensorView projection;  // T [batch, height * width, K * (R + 2 N)]: (dts, B, C) of every route
  TensorView dt_weight;   // T or P [K, channels, R]
  TensorView dt_bias;     // P [K, channels]
  TensorView A_log;       // P [K * channels, N]
  TensorView D;           // P [K * channels]
  const int64_t* routes = nullptr;  // K codes of four bits, see route.h
  int64_t route_count = 0;

  TensorView out;  // any type [batch, channels, height, width]

  // GPUs, optional: float32 [gpu_kept_states(size)], filled by the forward pass and read by the
  // backward pass, which else spends up to a third of its time on finding them again. Where gpu_keeps_halves(size)
  // each has two bfloat16 numbers in its place.
  TensorView states;
};

// The upstream gradient and where to put the results; undefined results are not wanted.
struct Ss2dGradients {
  TensorView out;  // upstream
  TensorView x, projection, dt_weight, dt_bias, A_log, D;
};

// A backward pass that has projections only of those images that it is at: of a slice, up to Ss2dGpuPlan::slice of them. The problem's
// `projection` and its gradient then point at room for so many images, in the shape of all; where the plan does not store delta's
// gradient it may be the same room.
struct Ss2dProjectionSlices {
  // Puts work on the stream: projections of `images` images from image `first` on; and what is made of their gradients.
  std::function<void(int64_t first, int64_t images)> begin, end;
};

Ss2dSize size_of(const Ss2dProblem& problem);
// Of a backward pass: the result's type is that of its gradient.
Ss2dSize size_of(const Ss2dProblem& problem, const Ss2dGradients& gradients);

// Elements between neighbouring pixels of planes [batch, channels, height, width] that check() has accepted.
int64_t pixel_stride(const TensorView& planes);
// Whether two neighbouring channels of x, or numbers of a record, are one aligned access on GPUs.
bool has_aligned_pairs(const Ss2dProblem& problem);

// Throws InvalidArgument naming the first argument that does not fit.
void check(const Ss2dProblem& problem);

// `workspace`: plan.workspace_bytes at a 64-byte boundary. With the plan of the same pass.
void forward(const Ss2dProblem& problem, const Ss2dPlan& plan, std::byte* workspace,
             const ParallelFor& parallel_for);
void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients, const Ss2dPlan& plan,
              std::byte* workspace, const ParallelFor& parallel_for);

// The same on a GPU, for problems that check() and check_gpu() accept, in builds with CUDA: tensors
// and workspace (256-byte boundary) are memory of the current device, `routes` is the host's. Work is
// put on the stream, nothing waits, nothing is allocated, two runs give identical bits. The gradients
// of all inputs are wanted.
void check_gpu(const Ss2dProblem& problem);  // Unsupported: float64, > 1024 routes, 2^31 pixels
void forward(const Ss2dProblem& problem, const Ss2dGpuPlan& plan, std::byte* workspace,
             GpuStream stream);
void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients, const Ss2dGpuPlan& plan,
              std::byte* workspace, GpuStream stream);
// Slice by slice, for plans of one tile and problems with at least one number.
void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients, const Ss2dGpuPlan& plan,
              const Ss2dProjectionSlices& slices, std::byte* workspace, GpuStream stream);

struct Ss2dJudge {
  Judged out;                                          // forward
  Judged x, projection, dt_weight, dt_bias, A_log, D;  // backward
};
Ss2dJudge reference_forward(const Ss2dProblem& problem);
Ss2dJudge reference_backward(const Ss2dProblem& problem, const Ss2dGradients& gradients);

}  // namespace linescan
