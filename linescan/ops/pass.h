// Forward or backward: every operator plans them apart.
#pragma once

#include <string_view>

namespace linescan {

enum class Pass { kForward, kBackward };

constexpr std::string_view name_of(Pass pass) {
  return pass == Pass::kForward ? "forward" : "backward";
}

}  // namespace linescan
