// How a caller hands a CUDA stream through headers that know no CUDA.
#pragma once

namespace linescan {

// A cudaStream_t. Kernels run on it, on the current device; nothing synchronises.
struct GpuStream {
  void* handle = nullptr;
};

}  // namespace linescan
