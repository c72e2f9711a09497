// Everything that LibTorch's dispatcher and autograd run, with the time it takes: on the host by its
// clock; on a GPU between two events on the stream, if it belongs to another part than what is around it.
//
// Recording an operator costs half a microsecond on the CPU (2026-11-21), on a GPU the events besides:
// so that it does not wait for the host, it is kept busy until the host has a lead.
#pragma once

#include <functional>

#include "linescan/lab/recording.h"
#include "linescan/models/compute.h"

namespace linescan::lab {

// Runs `work` once and records it. Only one recording at a time.
Recording record_operators(const Compute& compute, const std::function<void()>& work);

}  // namespace linescan::lab
