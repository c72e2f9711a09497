// What this process takes and may still take of its machine. Read anew at every call, never throws; what
// the system does not tell is 0.
#pragma once

#include <cstdint>

namespace linescan {

// Bytes in memory now; peak_memory() of cpu.h is the most there were.
int64_t resident_memory();

// Bytes that could still be taken: what the machine has left, or the control group allows, whichever is less.
int64_t available_memory();

int64_t open_files();
// How many there may be; 0 also means no limit.
int64_t open_file_limit();

}  // namespace linescan
