// A CUDA graph recorded from LibTorch's work on the current stream.
#pragma once

#include <ATen/cuda/CUDAGraph.h>

#include <functional>
#include <memory>

#include "linescan/binding/gpu_runtime.h"

namespace linescan {

class DeviceGraph : public RecordedWork {
 public:
  // GpuRuntime::record().
  static std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work);

  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace linescan
