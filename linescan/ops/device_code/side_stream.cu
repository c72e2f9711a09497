// Streams beside callers', by the runtime; in the emulator, where everything comes in turn, a side stream is the caller's.
#include "linescan/ops/device_code/cuda.cuh"
#include "linescan/ops/device_code/side_stream.h"

#ifndef LINESCAN_CUDA_ON_CPU
#include <map>
#include <utility>
#endif

namespace linescan {

#ifdef LINESCAN_CUDA_ON_CPU

SideStream::SideStream(GpuStream callers) : callers_(callers), side_(callers) {}
SideStream::~SideStream() = default;
void SideStream::join() { joined_ = true; }

#else
namespace {

constexpr const char* kWhat = "a stream beside the current one";

cudaStream_t of(GpuStream stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

// An event tells one stream how far the other one was when it was recorded, however often it is recorded again.
class SideStream::Branch {
 public:
  Branch() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), kWhat);
    check_cuda(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming), kWhat);
  }
  // What is under way goes on; where the runtime has ended before the thread, there is nothing left to destroy.
  ~Branch() {
    cudaEventDestroy(reached_);
    cudaStreamDestroy(stream_);
  }
  Branch(const Branch&) = delete;
  Branch& operator=(const Branch&) = delete;

  // Of the calling thread, the current device and a stream.
  static Branch& beside(GpuStream stream) {
    thread_local std::map<std::pair<int, void*>, Branch> branches;
    int device = 0;
    check_cuda(cudaGetDevice(&device), kWhat);
    return branches[{device, stream.handle}];
  }
  cudaStream_t stream() const { return stream_; }
  // What is launched on `later` from here on waits for what `earlier` has.
  cudaError_t order(cudaStream_t earlier, cudaStream_t later) const {
    const cudaError_t error = cudaEventRecord(reached_, earlier);
    return error == cudaSuccess ? cudaStreamWaitEvent(later, reached_, 0) : error;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t reached_ = nullptr;
};

SideStream::SideStream(GpuStream callers) : callers_(callers), branch_(&Branch::beside(callers)) {
  side_.handle = branch_->stream();
  check_cuda(branch_->order(of(callers_), of(side_)), kWhat);
}
SideStream::~SideStream() {
  if (!joined_) branch_->order(of(side_), of(callers_));
}
void SideStream::join() {
  check_cuda(branch_->order(of(side_), of(callers_)), kWhat);
  joined_ = true;
}

#endif

}  // namespace linescan
