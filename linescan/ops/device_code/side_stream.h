// A stream beside the caller's, for launches that need not wait for each other.
#pragma once

#include "linescan/ops/gpu_stream.h"

namespace linescan {

// From the constructor to join() there are two streams. Both wait for what the caller's had before, and what is launched on the
// caller's afterwards waits for both; nothing synchronises with the host, and a graph that is captured has two branches. Every
// caller's stream has a side stream of its own, and every thread of the host: what is captured takes no other work into its
// graph. They are used again, one SideStream at a time. Throws DeviceError.
class SideStream {
 public:
  explicit SideStream(GpuStream callers);
  ~SideStream();  // joins if join() has not been called; an error of that is the next launch's
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  GpuStream stream() const { return side_; }
  void join();

 private:
  class Branch;

  GpuStream callers_, side_;
  Branch* branch_ = nullptr;
  bool joined_ = false;
};

}  // namespace linescan
