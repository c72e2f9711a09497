// Moves sample tensors to the GPU and back, margins included, so that kernels meet device memory.
// Under the emulator (cuda_on_cpu.h) both are the same memory, and nothing moves.
#pragma once

#ifndef LINESCAN_CUDA_ON_CPU
#include <cuda_runtime.h>
#endif

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "linescan/device/gpu.h"
#include "linescan/ops/sample_tensor.h"

namespace linescan::testing {

#ifdef LINESCAN_CUDA_ON_CPU

inline std::string why_no_test_gpu() { return ""; }
inline bool have_gpu() { return true; }
inline bool repeats() { return false; }  // for the time
inline const Gpu& test_gpu() { return find_gpu("h100"); }

class GpuTensors {
 public:
  TensorView take(SampleTensor& tensor) { return tensor.view(); }
  void bring_back() {}
};
using GpuWorkspace = Workspace;

inline void copy_on_gpu(void* to, const void* from, int64_t bytes) { std::memcpy(to, from, bytes); }

#else

// Empty if there is a GPU that this build has code for.
inline std::string why_no_test_gpu() {
  if (gpus().empty()) return "no GPU: " + why_no_gpu();
  const CodeAnswer code = code_for(gpus().front());
  return code.runs ? "" : gpus().front().name + ": " + code.text;
}
inline bool have_gpu() { return why_no_test_gpu().empty(); }
// Whether cases run twice, to the same bits. Not for tools that slow kernels down and look for something else.
inline bool repeats() { return std::getenv("LINESCAN_TEST_ONCE") == nullptr; }
inline const Gpu& test_gpu() { return gpus().front(); }

inline void expect_cuda(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

class GpuTensors {
 public:
  GpuTensors() = default;
  GpuTensors(const GpuTensors&) = delete;
  ~GpuTensors() {
    for (const auto& [device, memory] : tensors_) cudaFree(device);
  }
  // The tensor's view on a copy of its memory; undefined if the tensor is.
  TensorView take(SampleTensor& tensor) {
    if (!tensor) return {};
    std::vector<std::byte>& memory = tensor.memory();
    void* device = nullptr;
    expect_cuda(cudaMalloc(&device, memory.size()));
    tensors_.emplace_back(device, &memory);
    expect_cuda(cudaMemcpy(device, memory.data(), memory.size(), cudaMemcpyHostToDevice));
    TensorView view = tensor.view();
    view.data =
        static_cast<std::byte*>(device) + (static_cast<std::byte*>(view.data) - memory.data());
    return view;
  }
  // Waits for the device and copies everything back.
  void bring_back() {
    expect_cuda(cudaDeviceSynchronize());
    for (const auto& [device, memory] : tensors_)
      expect_cuda(cudaMemcpy(memory->data(), device, memory->size(), cudaMemcpyDeviceToHost));
  }

 private:
  std::vector<std::pair<void*, std::vector<std::byte>*> > tensors_;
};

class GpuWorkspace {
 public:
  explicit GpuWorkspace(int64_t bytes, int filling = 0xFF) {
    expect_cuda(cudaMalloc(&memory_, bytes + 1));
    expect_cuda(cudaMemset(memory_, filling, bytes + 1));
  }
  GpuWorkspace(const GpuWorkspace&) = delete;
  ~GpuWorkspace() { cudaFree(memory_); }
  std::byte* data() { return static_cast<std::byte*>(memory_); }

 private:
  void* memory_ = nullptr;
};

inline void copy_on_gpu(void* to, const void* from, int64_t bytes) {
  expect_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice));
}

#endif  // LINESCAN_CUDA_ON_CPU

}  // namespace linescan::testing
