// The door from the scans' bindings to their CUDA kernels, which are in a library that may be absent.
#pragma once

#include <ATen/core/Tensor.h>

#include "linescan/ops/selective_scan/selective_scan.h"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

// Problems are checked; views point at memory of `on`'s device.
class GpuScans {
 public:
  virtual ~GpuScans() = default;

  virtual void forward(const SelectiveScanProblem& problem, const at::Tensor& on) = 0;
  virtual void backward(const SelectiveScanProblem& problem,
                        const SelectiveScanGradients& gradients, const at::Tensor& on) = 0;
  virtual void forward(const Ss2dProblem& problem, const at::Tensor& on) = 0;
  virtual void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients,
                        const at::Tensor& on) = 0;
  // With that plan for the device, of one tile.
  virtual void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients,
                        const Ss2dGpuPlan& plan, const Ss2dProjectionSlices& slices,
                        const at::Tensor& on) = 0;
};

// The plugin's. Throws Unsupported before load_cuda_operators() has succeeded.
GpuScans& gpu_scans();

// For the plugin; `scans` must live as long as the process.
void register_gpu_scans(GpuScans* scans);

}  // namespace linescan
