// Asks the NVIDIA driver for its GPUs, without a CUDA toolkit. gpu.h caches the answer.
#pragma once

#include <string>
#include <vector>

#include "linescan/device/gpu.h"

namespace linescan {

struct GpuReading {
  std::vector<Gpu> gpus;
  std::string why_none;  // empty if there are GPUs
  int cuda_version = 0;
};

// `library`: the driver's, "libcuda.so.1", or a path. Never throws; the library stays loaded.
GpuReading read_gpus(const char* library);

}  // namespace linescan
