// What is written down about a run that stands still: everything that tells a kernel that loops from a
// thread that waits, in the order in which a reader asks.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "linescan/train/watchdog.h"

namespace linescan {

struct HangContext {
  std::filesystem::path checkpoint;  // the last one
  // State of the GPU's queue and memory in a line; empty function: no GPU is used. Asked in a thread of
  // its own, because a driver that stands still may not answer either.
  std::function<std::string()> gpu = {};
  std::filesystem::path run = {};  // a folder that doctor and --resume take; empty: there is none
};

// "step 12 has been at work for 31.0 s, the limit is 30.0 s; module layers.0.blocks.1.op, operator ss2d"
std::string hang_line(const Hang& hang);

// The line, operator and plan, queue of the GPU, memory, statistics of the last step, what to do, and the
// stacks of all threads. Takes up to two seconds longer where a GPU does not answer.
std::string hang_report(const Hang& hang, const HangContext& context);

// What `ask` says, or nothing if it takes longer than two seconds; it is left to itself then.
std::optional<std::string> ask_patiently(std::function<std::string()> ask);

}  // namespace linescan
