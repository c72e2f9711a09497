#include "linescan/binding/cuda/gpu_tensors.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

namespace linescan {

GpuStream current_stream(const at::Tensor& tensor) {
  return {c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream()};
}

const Gpu& gpu_of(const at::Tensor& tensor) { return gpus().at(tensor.device().index()); }

at::Tensor gpu_workspace(const at::Tensor& tensor, int64_t bytes) {
  return at::empty({bytes}, tensor.options().dtype(at::kByte));
}

std::byte* bytes_of(const at::Tensor& workspace) {
  return static_cast<std::byte*>(workspace.data_ptr());
}

}  // namespace linescan
