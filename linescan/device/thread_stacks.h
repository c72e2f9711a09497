// Where every thread of this process is, for the report on a process that stands still.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace linescan {

struct ThreadStack {
  pid_t id = 0;
  std::string name;   // as the system shows it, "linescan"
  std::string state;  // "running", "sleeping", "waiting for a device", ...
  bool asks = false;  // the thread that called thread_stacks()
  std::vector<std::string>
      frames;  // innermost first: "function + 0x12 in libfoo.so"; empty: no answer
};

// The kernel's state letter of /proc/PID/stat in words.
std::string thread_state_in_words(char letter);

// Interrupts one thread after the other with a real-time signal, whose handler stays in place. System
// calls that a signal ends (poll, for one) return early in those threads, so this is for processes that are
// about to be given up or to be looked at. A thread that does not answer within a fifth of a second
// has no frames. One call at a time.
std::vector<ThreadStack> thread_stacks();

// One paragraph a thread.
std::string to_string(const std::vector<ThreadStack>& threads);

}  // namespace linescan
