#include "linescan/lab/out_of_memory.h"

#include <malloc.h>

#include "linescan/binding/gpu_runtime.h"
#include "linescan/models/memory_errors.h"

namespace linescan::lab {

void give_memory_back(const Compute& compute) {
  if (compute.on_gpu()) return gpu_runtime().release_unused_memory();
  ::malloc_trim(0);
}

bool fits_memory(const std::function<void()>& run) {
  try {
    run();
    return true;
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    return false;
  }
}

int64_t run_halving(int64_t batch, const std::function<void(int64_t)>& run,
                    const std::function<void(int64_t)>& halved) {
  for (; batch >= 1; batch /= 2) {
    if (fits_memory([&] { run(batch); })) return batch;
    halved(batch);
  }
  return 0;
}

}  // namespace linescan::lab
