// What tests ask of errors.
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

}  // namespace linescan::testing
