// On what a run computes: the content of machine.json, and what decides the last bits of results.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "linescan/models/compute.h"
#include "linescan/train/recipe.h"

namespace linescan {

// Instruction sets of our kernels and of LibTorch's, "AVX3, libtorch AVX512".
std::string instruction_sets();

// The process's threads as a recipe wants them: so many, or OMP_NUM_THREADS, or one a core.
void set_threads(const Recipe& recipe);

// {"cpu", "cores", "threads", "memory_gb", "simd", "os", "linescan", "libtorch", "compiler"}; where
// the work is done by a GPU also {"gpu", "gpu_memory_gb"}.
nlohmann::json describe_machine(const Compute& compute = {});

// Bytes of this process, or of its tensors on the GPU.
int64_t memory_in_use(const Compute& compute);

// What memory is in use and free, in a line: that of the machine, and of the GPU where one is used.
std::string describe_memory(const Compute& compute);

// Whether the GPU's queue is empty and what memory there is, in a line, from any thread; nothing to ask
// for the CPU. The queue is that of the calling thread.
std::function<std::string()> gpu_probe(const Compute& compute);

}  // namespace linescan
