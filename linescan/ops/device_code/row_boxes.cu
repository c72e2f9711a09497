// Descriptions of tensors for the copy engine, by the driver; the emulator has neither.
#include "linescan/ops/device_code/row_boxes.cuh"

#ifndef LINESCAN_CUDA_ON_CPU
#include <cuda.h>
#endif

namespace linescan {

#ifdef LINESCAN_CUDA_ON_CPU

bool describe_rows(RowBoxes&, const void*, const int64_t (&)[4], const int64_t (&)[4]) {
  return false;
}

#else

namespace {

// The driver's function; null where it has none. Asked for, so that nothing has to be linked.
auto encoder() {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &result);
    const bool found = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return found ? reinterpret_cast<Encode>(function) : nullptr;
  }();
  return encode;
}

}  // namespace

bool describe_rows(RowBoxes& boxes, const void* data, const int64_t (&sizes)[4],
                   const int64_t (&strides)[4]) {
  static_assert(sizeof(RowBoxes) == sizeof(CUtensorMap));
  constexpr int64_t kMostSize = int64_t{1} << 31, kMostStride = int64_t{1} << 40;  // in bytes
  if (!data || !encoder() || reinterpret_cast<std::uintptr_t>(data) % 16 != 0) return false;
  cuuint64_t dims[4], steps[3];
  for (int i = 0; i < 4; ++i) {
    if (sizes[i] < 1 || sizes[i] >= kMostSize) return false;
    dims[i] = static_cast<cuuint64_t>(sizes[i]);
    if (i == 0) continue;
    const int64_t step = sizes[i] > 1 ? 2 * strides[i] : 16;  // anything, where there is but one
    if (step <= 0 || step % 16 != 0 || step >= kMostStride) return false;
    steps[i - 1] = static_cast<cuuint64_t>(step);
  }
  constexpr cuuint32_t kBox[] = {64, 1, 64, 1}, kSteps[] = {1, 1, 1, 1};
  return encoder()(reinterpret_cast<CUtensorMap*>(&boxes), CU_TENSOR_MAP_DATA_TYPE_UINT16, 4,
                   const_cast<void*>(data), dims, steps, kBox, kSteps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#endif

}  // namespace linescan
