#include "linescan/models/memory_errors.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

#include "linescan/base/out_of_memory.h"

#if __has_include(<dnnl.hpp>)  // not where LibTorch is built without oneDNN
#include <dnnl.hpp>
#endif

namespace linescan {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return true;
#if __has_include(<dnnl.hpp>)
  // Its text, "could not create a primitive", is that of every reason.
  if (const auto* refusal = dynamic_cast<const dnnl::error*>(&error))
    return refusal->status == dnnl_out_of_memory;
#endif
  // LibTorch's allocator for the CPU and the CUDA libraries throw errors like any other.
  const std::string_view text = error.what();
  for (const std::string_view sign :
       {"can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED"})
    if (text.find(sign) != std::string_view::npos) return true;
  return false;
}

}  // namespace linescan
