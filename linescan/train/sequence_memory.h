// What a training step on sequences keeps in memory, so that one that cannot fit is refused in words
// before the system kills the program. For the CPU: on a GPU LibTorch says so itself.
#pragma once

#include <cstdint>

#include "linescan/train/config.h"

namespace linescan {

// About how many bytes a step needs for each token of its batch. Measured at the peak of steps with one
// to six layers, 64 and 256 channels, short and long heads, with and without MLP, gate and convolutions,
// 64 and 4096 tokens in the vocabulary: at most this, and at least three quarters of it.
double sequence_bytes_per_token(const RunConfig& config);

// Throws InvalidArgument, saying which length and which batch fit, if a step of a configuration that
// computes on the CPU needs more than `memory_bytes`; 0 stands for an unknown amount, which is enough.
void expect_sequences_fit(const RunConfig& config, int64_t memory_bytes);

}  // namespace linescan
