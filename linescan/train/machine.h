// On what a run computes: the content of machine.json, and what decides the last bits of results.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace linescan {

// Instruction sets of our kernels and of LibTorch's, "AVX3, libtorch AVX512".
std::string instruction_sets();

// {"cpu", "cores", "threads", "memory_gb", "simd", "os", "linescan", "libtorch", "compiler"}
nlohmann::json describe_machine();

}  // namespace linescan
