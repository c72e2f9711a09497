// The error of a failed launch, made outside of the files that nvcc compiles (it cannot parse fmt's
// checked format strings).
#pragma once

namespace linescan {

// Throws DeviceError: "what: message (name) at file:line".
[[noreturn]] void throw_cuda_error(const char* what, const char* name, const char* message,
                                   const char* file, int line);

}  // namespace linescan
