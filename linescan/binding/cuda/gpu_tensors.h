// What every operator's CUDA half needs: the stream to run on, the GPU to plan for, a workspace.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "linescan/device/gpu.h"
#include "linescan/ops/gpu_stream.h"

namespace linescan {

// PyTorch's current stream on the tensor's device, which must be the current device.
GpuStream current_stream(const at::Tensor& tensor);

// The description of the tensor's device.
const Gpu& gpu_of(const at::Tensor& tensor);

// Memory on the tensor's device. It may be given up as soon as the kernels have been started: the
// allocator hands it out again in the order of the stream.
at::Tensor gpu_workspace(const at::Tensor& tensor, int64_t bytes);
std::byte* bytes_of(const at::Tensor& workspace);

}  // namespace linescan
