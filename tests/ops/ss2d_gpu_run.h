// ss2d's kernels on a sample, for their tests: on a GPU, or on the CPU through the emulator.
#pragma once

#include "linescan/ops/ss2d/sample.h"
#include "tests/support/gpu_sample.h"

namespace linescan::testing {

// `slice`: images of a launch, twice as many where states cross tiles; 0: as planned.
inline void run_on_gpu(Ss2dSample& sample, const Gpu& gpu = test_gpu(), bool keep_states = false,
                       int64_t slice = 0) {
  check(sample.problem);
  check_gpu(sample.problem);
  GpuTensors tensors;
  const auto on_gpu = [&](SampleTensor& tensor) { return tensors.take(tensor); };
  Ss2dProblem problem = sample.problem;
  problem.x = on_gpu(sample.x);
  problem.projection = on_gpu(sample.projection);
  problem.dt_weight = on_gpu(sample.dt_weight);
  problem.dt_bias = on_gpu(sample.dt_bias);
  problem.A_log = on_gpu(sample.A_log);
  problem.D = on_gpu(sample.D);
  problem.out = on_gpu(sample.out);
  const Ss2dGradients gradients = {on_gpu(sample.gout),        on_gpu(sample.gx),
                                   on_gpu(sample.gprojection), on_gpu(sample.gdt_weight),
                                   on_gpu(sample.gdt_bias),    on_gpu(sample.gA_log),
                                   on_gpu(sample.gD)};
  SampleTensor states({gpu_kept_states(size_of(problem))}, DType::kFloat32);
  if (keep_states && gpu_kept_states(size_of(problem)) > 0) problem.states = on_gpu(states);
  const Ss2dSize size = size_of(problem);
  const auto planned = [&](Pass pass) {
    Ss2dGpuPlan made = plan(size, pass, gpu);
    if (slice > 0) made.slice = slice, made.pieces_slice = 2 * slice;
    return made;
  };
  const Ss2dGpuPlan ahead = planned(Pass::kForward);
  GpuWorkspace forward_workspace(ahead.workspace_bytes);
  forward(problem, ahead, forward_workspace.data(), GpuStream{});
  const Ss2dGpuPlan back = planned(Pass::kBackward);
  GpuWorkspace backward_workspace(back.workspace_bytes);
  backward(problem, gradients, back, backward_workspace.data(), GpuStream{});
  tensors.bring_back();
}

// As test_gpu(), with little shared memory: planes of a few hundred pixels already need tiles.
inline Gpu small_gpu() {
  Gpu gpu = test_gpu();
  gpu.shared_per_block = 9000;
  return gpu;
}

// Tiles of 16 x 16, whose lines are two segments.
inline Gpu medium_gpu() {
  Gpu gpu = test_gpu();
  gpu.shared_per_block = 25000;
  return gpu;
}

// As test_gpu(), so small that a few images fill it: small planes are then walked an image a lane.
inline Gpu narrow_gpu() {
  Gpu gpu = test_gpu();
  gpu.multiprocessors = 1;
  return gpu;
}

}  // namespace linescan::testing
