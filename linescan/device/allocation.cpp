#include "linescan/device/allocation.h"

#include <malloc.h>

#include <limits>

namespace linescan {

void keep_freed_memory() {
  // By default, glibc maps blocks above 32 MiB on their own and unmaps them when they are freed.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace linescan
