// Errors that say that memory ran out, whoever throws them.
#pragma once

#include <exception>

namespace linescan {

// Whether an error says that memory ran out, on the CPU or a GPU: an allocator's, a library's, or an operator's refusal
// (OutOfMemory).
bool is_out_of_memory(const std::exception& error);

}  // namespace linescan
