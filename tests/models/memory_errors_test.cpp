#include "linescan/models/memory_errors.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "linescan/base/out_of_memory.h"

#if __has_include(<dnnl.hpp>)
#include <dnnl.hpp>
#endif

namespace linescan {
namespace {

TEST(MemoryErrors, AreKnownFromWhateverSaysSo) {
  EXPECT_TRUE(is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(is_out_of_memory(OutOfMemory("gated_delta_rule: a batch of 3 would fit", 3)));
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

#if __has_include(<dnnl.hpp>)
TEST(MemoryErrors, AreOneOfManyReasonsForWhichOneDnnMakesNoPrimitive) {
  EXPECT_TRUE(is_out_of_memory(dnnl::error(dnnl_out_of_memory, "could not create a primitive")));
  EXPECT_FALSE(is_out_of_memory(dnnl::error(dnnl_unimplemented, "could not create a primitive")));
}
#endif

}  // namespace
}  // namespace linescan
