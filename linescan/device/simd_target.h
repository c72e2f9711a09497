// Which instruction set the CPU kernels run on: the best that both the machine and this build have,
// unless LINESCAN_SIMD or a test says otherwise. Names are Highway's: "AVX3" is AVX-512.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace linescan {

// Every target that this build has code for and this machine can run, best first.
std::vector<std::string> simd_targets();

// The target in force. The first call obeys LINESCAN_SIMD; a value that is unknown or cannot run
// here throws InvalidArgument.
std::string simd_target();

// Forces a target for the whole process from now on. Throws InvalidArgument like simd_target().
void force_simd_target(std::string_view name);

// Makes sure that the environment variable has been obeyed; cheap after the first call. Every
// operator calls it before it dispatches.
void ensure_simd_target();

}  // namespace linescan
