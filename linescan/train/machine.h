// On what a run computes: the content of machine.json, and what decides the last bits of results.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "linescan/models/compute.h"

namespace linescan {

// Instruction sets of our kernels and of LibTorch's, "AVX3, libtorch AVX512".
std::string instruction_sets();

// {"cpu", "cores", "threads", "memory_gb", "simd", "os", "linescan", "libtorch", "compiler"}; where
// the work is done by a GPU also {"gpu", "gpu_memory_gb"}.
nlohmann::json describe_machine(const Compute& compute = {});

}  // namespace linescan
