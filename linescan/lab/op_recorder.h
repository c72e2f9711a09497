// Everything that LibTorch's dispatcher and autograd run, with the time it takes: on the host by its
// clock, on a GPU also between two events on the stream.
//
// Shares stay what they are where the device has work enough to keep it busy; recording an operator
// costs half a microsecond on the CPU (2026-11-21), on a GPU the events besides.
#pragma once

#include <functional>

#include "linescan/lab/recording.h"
#include "linescan/models/compute.h"

namespace linescan::lab {

// Runs `work` once and records it. Only one recording at a time.
Recording record_operators(const Compute& compute, const std::function<void()>& work);

}  // namespace linescan::lab
