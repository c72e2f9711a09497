#include "linescan/lab/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

namespace linescan::lab {
namespace {

// Whether the batch fitted. By its return the exception, which may hold on to tensors, is gone.
bool fits(const std::function<void(int64_t)>& run, int64_t batch) {
  try {
    run(batch);
    return true;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return false;
  }
}

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return true;
  const std::string_view text = error.what();
  for (const std::string_view sign :
       {"allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED"})
    if (text.find(sign) != std::string_view::npos) return true;
  return false;
}

int64_t run_halving(int64_t batch, const std::function<void(int64_t)>& run,
                    const std::function<void(int64_t)>& halved) {
  for (; batch >= 1; batch /= 2) {
    if (fits(run, batch)) return batch;
    halved(batch);
  }
  return 0;
}

}  // namespace linescan::lab
