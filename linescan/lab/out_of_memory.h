// Work on a batch that may not fit the memory.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>

namespace linescan::lab {

// Whether an error says that memory ran out: LibTorch's of the GPU and of the CPU, those of the CUDA
// libraries, and the standard library's.
bool is_out_of_memory(const std::exception& error);

// Calls run(batch), then run(batch / 2) and so on as long as memory runs out; `halved` hears of each
// batch that was too large, after its memory was given back. Returns the batch that fitted; 0 if not
// even one image did. Other errors pass.
int64_t run_halving(int64_t batch, const std::function<void(int64_t batch)>& run,
                    const std::function<void(int64_t too_large)>& halved);

}  // namespace linescan::lab
