// Memory for an operator's workspace, filled with NaN patterns: a kernel that reads what it has not
// written shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace linescan::testing {

class Workspace {
 public:
  explicit Workspace(int64_t bytes) : memory_(new std::byte[bytes + 64]) {
    std::memset(memory_.get(), 0xFF, bytes + 64);
  }
  std::byte* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    return memory_.get() + (64 - address % 64) % 64;
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

}  // namespace linescan::testing
