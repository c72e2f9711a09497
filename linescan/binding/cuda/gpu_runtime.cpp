// GpuRuntime on LibTorch's CUDA half; registered when the plugin is loaded.

#include "linescan/binding/gpu_runtime.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <limits>

#include "linescan/binding/cuda/graph.h"

namespace linescan {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

class CudaRuntime : public GpuRuntime {
  static constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

  // Before the first tensor it knows no device.
  static void start_allocator() { at::globalContext().lazyInitDevice(at::kCUDA); }

 public:
  void synchronize(c10::Device device) override {
    const c10::cuda::CUDAGuard guard(device);
    c10::cuda::device_synchronize();
  }

  int64_t peak_memory(c10::Device device) override {
    start_allocator();
    return allocator::getDeviceStats(device.index()).allocated_bytes[kAll].peak;
  }
  void reset_peak_memory(c10::Device device) override {
    start_allocator();
    allocator::resetPeakStats(device.index());
  }
  Memory memory(c10::Device device) override {
    start_allocator();
    const c10::cuda::CUDAGuard guard(device);
    const auto stats = allocator::getDeviceStats(device.index());
    std::size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {stats.allocated_bytes[kAll].current, stats.reserved_bytes[kAll].current,
            static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
  void release_unused_memory() override { allocator::emptyCache(); }

  std::function<bool()> queue_is_empty(c10::Device device) override {
    return [stream = c10::cuda::getCurrentCUDAStream(device.index())] { return stream.query(); };
  }
  void pause(c10::Stream stream, double seconds) override {
    const c10::cuda::CUDAStreamGuard guard(stream);
    int kilohertz = 0;
    C10_CUDA_CHECK(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, stream.device_index()));
    at::cuda::sleep(static_cast<int64_t>(seconds * 1e3 * kilohertz));
  }
  void start_endless_kernel(c10::Device device) override {
    const c10::cuda::CUDAGuard guard(device);
    at::cuda::sleep(std::numeric_limits<int64_t>::max());
  }

  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override {
    return DeviceGraph::capture(work);
  }

  std::vector<double> time(int count, const std::function<void()>& work,
                           const std::function<void()>& before) override {
    std::vector<at::cuda::CUDAEvent> starts, ends;
    for (int i = 0; i < count; ++i) {
      if (before) before();
      starts.emplace_back(cudaEventDefault).record();
      work();
      ends.emplace_back(cudaEventDefault).record();
    }
    ends.back().synchronize();
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) seconds.push_back(starts[i].elapsed_time(ends[i]) * 1e-3);
    return seconds;
  }
};

const bool kRegistered = [] {
  static CudaRuntime runtime;
  register_gpu_runtime(&runtime);
  return true;
}();

}  // namespace
}  // namespace linescan
