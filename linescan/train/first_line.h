// What went wrong, in a line: LibTorch's errors bring their backtrace along.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace linescan {

inline std::string first_line(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace linescan
