#include "linescan/train/machine.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace linescan {
namespace {

TEST(OutOfMemory, IsKnownFromWhateverSaysSo) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(std::runtime_error("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")));
  EXPECT_TRUE(is_out_of_memory(
      std::runtime_error("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes")));
  EXPECT_FALSE(is_out_of_memory(std::runtime_error("CUDA error: misaligned address")));
  try {  // far more than any machine has: the CPU's allocator says no
    at::empty({int64_t{1} << 52}, at::kByte);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_TRUE(is_out_of_memory(error)) << error.what();
  }
}

}  // namespace
}  // namespace linescan
