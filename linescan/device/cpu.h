// The processor and memory of this machine. Read once, cached, never throws; what cannot be found
// out is "unknown" or 0.
#pragma once

#include <cstdint>
#include <string>

namespace linescan {

struct Cpu {
  std::string model = "unknown";   // as the kernel names it
  std::string system = "unknown";  // the operating system
  int64_t cores = 0;               // that this process may use
  int64_t memory_bytes = 0;
  int64_t l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;  // data caches of one core; the shared one
};

const Cpu& cpu();

// The largest amount of memory, in bytes, that this process has held since start or since
// reset_peak_memory(); 0 if the system does not tell.
int64_t peak_memory();
void reset_peak_memory();

}  // namespace linescan
