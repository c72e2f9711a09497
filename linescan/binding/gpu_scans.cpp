#include "linescan/binding/gpu_scans.h"

#include "linescan/base/error.h"

namespace linescan {
namespace {

GpuScans* registered = nullptr;

}  // namespace

GpuScans& gpu_scans() {
  if (registered == nullptr)
    throw_error<Unsupported>(
        "tensors are on a GPU, but the CUDA kernels of Linescan are not loaded: a build with CUDA "
        "loads them with load_cuda_operators() in C++ and `import linescan` in Python");
  return *registered;
}

void register_gpu_scans(GpuScans* scans) { registered = scans; }

}  // namespace linescan
