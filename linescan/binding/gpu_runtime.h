// What a program that does not link the CUDA libraries may ask of them: recorded graphs, timing,
// memory. The plugin of CUDA operators (cuda_operators.h) brings the implementation along.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace linescan {

// Work recorded once and started as a whole: hundreds of kernels for the price of one launch.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  // Runs the recorded kernels on the memory that they were recorded with, on the current stream.
  virtual void replay() = 0;
};

// Runs of some work before it is recorded: libraries choose their algorithms and allocate in these.
inline constexpr int kRunsBeforeRecording = 3;

class GpuRuntime {
 public:
  virtual ~GpuRuntime() = default;

  // Waits for everything that was started on the device.
  virtual void synchronize(c10::Device device) = 0;

  // Bytes of tensors that were alive at once at most, since the last reset.
  virtual int64_t peak_memory(c10::Device device) = 0;
  virtual void reset_peak_memory(c10::Device device) = 0;
  struct Memory {
    int64_t allocated = 0, reserved = 0;  // bytes of tensors; taken from the driver for them
    int64_t free = 0, total = 0;          // of the device, whoever uses it
  };
  virtual Memory memory(c10::Device device) = 0;
  // Gives memory that no tensor uses back to the driver.
  virtual void release_unused_memory() = 0;

  // Whether everything that was put into the calling thread's current stream is done; may be asked
  // from any thread and does not wait.
  virtual std::function<bool()> queue_is_empty(c10::Device device) = 0;
  // Puts a kernel into the stream that does nothing for about so many seconds.
  virtual void pause(c10::Stream stream, double seconds) = 0;
  // Puts a kernel that practically never ends into the current stream. For those who test what follows.
  virtual void start_endless_kernel(c10::Device device) = 0;

  // Records what `work` starts on the current stream, which must not be the default one, without
  // running it. `work` must have run before (libraries choose algorithms at the first call), must
  // not wait for the device, and its inputs must stay where they are. Tensors that it makes belong
  // to the record. Throws DeviceError where something cannot be recorded; the device is usable then.
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& work) = 0;

  // Seconds that the device spends in each of `count` runs of `work`, one after the other; `before`
  // runs ahead of each, untimed.
  virtual std::vector<double> time(int count, const std::function<void()>& work,
                                   const std::function<void()>& before) = 0;
};

// The plugin's. Throws Unsupported before load_cuda_operators() has succeeded.
GpuRuntime& gpu_runtime();

// For the plugin; `runtime` must live as long as the process.
void register_gpu_runtime(GpuRuntime* runtime);

}  // namespace linescan
