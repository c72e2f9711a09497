// The kinds of error that the library throws. It never prints and never exits; the program turns
// a kind into an exit code (linescan/cli/main.cpp).
//
// One format for all: "who: what was got, what was expected", on one line.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace linescan {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The caller's input is wrong: shapes, types, names, values, unreadable or corrupt files.
struct InvalidArgument : Error {
  using Error::Error;
};

// The input is legal but no variant can serve it here; names what is required and what there is.
struct Unsupported : Error {
  using Error::Error;
};

// The device or its driver failed.
struct DeviceError : Error {
  using Error::Error;
};

// The system refused to write a file: disk full, no permission.
struct IoError : Error {
  using Error::Error;
};

// A loss, activation or parameter became NaN or infinite.
struct NotFinite : Error {
  using Error::Error;
};

// throw_error<InvalidArgument>("idx: {} has {} bytes, expected {}", path, got, expected);
template <typename Kind, typename... Args>
[[noreturn]] void throw_error(fmt::format_string<Args...> format, Args&&... args) {
  throw Kind(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace linescan
