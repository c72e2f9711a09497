// GpuScans on the CUDA kernels; registered when the plugin is loaded.

#include <c10/cuda/CUDAGuard.h>

#include "linescan/base/activity.h"
#include "linescan/binding/cuda/gpu_tensors.h"
#include "linescan/binding/gpu_scans.h"

namespace linescan {
namespace {

// Calls run(plan, workspace, stream).
template <class Plan, class Run>
void with_workspace(const Plan& plan, const at::Tensor& on, const Run& run) {
  const c10::cuda::CUDAGuard guard(on.device());
  const OperatorRunning running(plan);
  const at::Tensor workspace = gpu_workspace(on, plan.workspace_bytes);
  run(plan, bytes_of(workspace), current_stream(on));
}
// For a pass of a problem of that size.
template <class Problem, class Size, class Run>
void with_plan(const Problem& problem, const Size& size, Pass pass, const at::Tensor& on,
               const Run& run) {
  check_gpu(problem);
  with_workspace(linescan::plan(size, pass, gpu_of(on)), on, run);
}

class CudaScans : public GpuScans {
 public:
  void forward(const SelectiveScanProblem& problem, const at::Tensor& on) override {
    run_forward(problem, on);
  }
  void backward(const SelectiveScanProblem& problem, const SelectiveScanGradients& gradients,
                const at::Tensor& on) override {
    run_backward(problem, size_of(problem), gradients, on);
  }
  void forward(const Ss2dProblem& problem, const at::Tensor& on) override {
    run_forward(problem, on);
  }
  void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients,
                const at::Tensor& on) override {
    run_backward(problem, size_of(problem, gradients), gradients, on);
  }
  void backward(const Ss2dProblem& problem, const Ss2dGradients& gradients, const Ss2dGpuPlan& plan,
                const Ss2dProjectionSlices& slices, const at::Tensor& on) override {
    check_gpu(problem);
    with_workspace(plan, on, [&](const Ss2dGpuPlan& plan, const auto&... where) {
      linescan::backward(problem, gradients, plan, slices, where...);
    });
  }

 private:
  template <class Problem>
  static void run_forward(const Problem& problem, const at::Tensor& on) {
    with_plan(problem, size_of(problem), Pass::kForward, on,
              [&](const auto&... how) { linescan::forward(problem, how...); });
  }
  template <class Problem, class Size, class Gradients>
  static void run_backward(const Problem& problem, const Size& size, const Gradients& gradients,
                           const at::Tensor& on) {
    with_plan(problem, size, Pass::kBackward, on,
              [&](const auto&... how) { linescan::backward(problem, gradients, how...); });
  }
};

const bool kRegistered = [] {
  static CudaScans scans;
  register_gpu_scans(&scans);
  return true;
}();

}  // namespace
}  // namespace linescan
