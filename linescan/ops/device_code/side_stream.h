// A stream beside the caller's, for launches that need not wait for each other.
#pragma once

#include "linescan/ops/gpu_stream.h"

namespace linescan {

// From the constructor to join() there are two streams. Both wait for what the caller's had before, and what comes to the
// caller's afterwards waits for both; nothing synchronises with the host, and a graph that is captured has two branches. The
// stream belongs to the host's thread, so that one thread's capture is nothing to another's, and is used again: one SideStream of a
// thread at a time. Throws DeviceError.
class SideStream {
 public:
  explicit SideStream(GpuStream callers);
  ~SideStream();  // joins, if nobody has, as far as it can
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  GpuStream stream() const { return side_; }
  void join();

 private:
  GpuStream callers_, side_;
  bool joined_ = false;
};

}  // namespace linescan
