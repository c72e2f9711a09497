// Everything that LibTorch's dispatcher and autograd run, with the time it takes: on the host by its
// clock; on a GPU between two events on the stream, if it belongs to another part than what is around it.
//
// Recording an operator costs half a microsecond on the CPU (2026-11-21), on a GPU the events besides,
// which takes the host longer than most steps take a GPU. So that the device's times are not the host's,
// the device is made to wait where a part begins, until the host has a lead; these pauses are taken out of
// all times again.
#pragma once

#include <functional>

#include "linescan/lab/recording.h"
#include "linescan/models/compute.h"

namespace linescan::lab {

// Runs `work` once and records it. Only one recording at a time. `pause`: seconds that a GPU waits at the
// beginning of each part.
Recording record_operators(const Compute& compute, const std::function<void()>& work,
                           double pause = 0);

// The pause that gives the host a lead in work like the recorded.
double pause_for(const Recording& recording);

}  // namespace linescan::lab
