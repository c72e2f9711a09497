// Run-time value -> compile-time value, for kernels.
#pragma once

#include "linescan/base/dtype.h"
#include "linescan/ops/device_code/numbers.cuh"

namespace linescan {

// Calls function.operator()<T>() with the storage type; float64 has no CUDA kernels (check_gpu).
template <class Function>
void dispatch_data(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kBFloat16:
      return function.template operator()<BFloat16>();
    case DType::kFloat16:
      return function.template operator()<Float16>();
    default:
      return function.template operator()<float>();
  }
}

}  // namespace linescan
