#include "linescan/binding/gpu_runtime.h"

#include "linescan/base/error.h"

namespace linescan {
namespace {

GpuRuntime* registered = nullptr;

}  // namespace

GpuRuntime& gpu_runtime() {
  if (registered == nullptr)
    throw_error<Unsupported>("gpu_runtime: the CUDA operators are not loaded");
  return *registered;
}

void register_gpu_runtime(GpuRuntime* runtime) { registered = runtime; }

}  // namespace linescan
