// The error of a failed launch, made outside of the files that nvcc compiles (it cannot parse fmt's
// checked format strings).
#pragma once

#include <cstdint>

namespace linescan {

// Throws DeviceError: "what: message (name) at file:line".
[[noreturn]] void throw_cuda_error(const char* what, const char* name, const char* message,
                                   const char* file, int line);

// Throws Unsupported.
[[noreturn]] void throw_too_many_blocks(const char* what, std::int64_t blocks);

}  // namespace linescan
