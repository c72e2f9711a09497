// What tests ask of messages and other texts.
#pragma once

#include <string>

#include "linescan/base/error.h"

namespace linescan::testing {

// The message of the InvalidArgument that a call throws, or "accepted".
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline int times_in(const std::string& text, const std::string& part) {
  int times = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++times;
  return times;
}

}  // namespace linescan::testing
