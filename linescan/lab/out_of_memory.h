// Work that may not fit the memory.
#pragma once

#include <cstdint>
#include <functional>

#include "linescan/models/compute.h"

namespace linescan::lab {

// Gives memory that no tensor uses back, to the GPU's driver or to the system.
void give_memory_back(const Compute& compute);

// Whether `run` got by with the memory that there is. By the return the error, which may hold on to
// tensors, is gone. Other errors pass.
bool fits_memory(const std::function<void()>& run);

// Calls run(batch), then run(batch / 2) and so on as long as memory runs out; `halved` hears of each
// batch that was too large, after its memory was given back. Returns the batch that fitted; 0 if not
// even one image did. Other errors pass.
int64_t run_halving(int64_t batch, const std::function<void(int64_t batch)>& run,
                    const std::function<void(int64_t too_large)>& halved);

}  // namespace linescan::lab
