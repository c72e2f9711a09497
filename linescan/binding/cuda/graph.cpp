#include "linescan/binding/cuda/graph.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <mutex>

#include "linescan/base/error.h"

namespace linescan {
namespace {

// Ends a recording that something illegal has broken. On success capture_end() does all of this: the
// stream leaves capture mode, the allocator stops to serve it from the graph's memory, and the random
// generator believes no longer that it is being recorded; the last by a fresh copy of its state.
void abandon(at::cuda::CUDAGraph& graph, at::cuda::MempoolId_t memory) {
  const c10::DeviceIndex device = c10::cuda::current_device();
  try {
    graph.capture_end();
  } catch (const c10::Error&) {
    c10::cuda::CUDACachingAllocator::endAllocateToPool(device, memory);
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.graphsafe_set_state(generator.clone());
  }
  static_cast<void>(cudaGetLastError());  // a later check must not find this error
}

// With the first line of LibTorch's message; the rest is its own call stack.
[[noreturn]] void refuse(const std::exception& error) {
  const std::string text = error.what();
  throw_error<DeviceError>("cuda graph: the work cannot be recorded: {}",
                           text.substr(0, text.find('\n')));
}

}  // namespace

std::unique_ptr<DeviceGraph> DeviceGraph::capture(const std::function<void()>& work) {
  auto result = std::make_unique<DeviceGraph>();
  at::cuda::CUDAGraph& graph = result->graph_;
  c10::cuda::device_synchronize();
  // What the runs before have left in the cache is too much beside the graph's own memory.
  c10::cuda::CUDACachingAllocator::emptyCache();
  // Ours from the start: a graph names its memory only after a capture that succeeded.
  const at::cuda::MempoolId_t memory = at::cuda::graph_pool_handle();
  try {
    graph.capture_begin(memory);
  } catch (const c10::Error& error) {
    refuse(error);
  }
  try {
    work();
    graph.capture_end();
  } catch (const std::exception& error) {
    abandon(graph, memory);
    refuse(error);
  }
  return result;
}

}  // namespace linescan
