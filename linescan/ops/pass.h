// Forward or backward: every operator plans them apart.
#pragma once

namespace linescan {

enum class Pass { kForward, kBackward };

constexpr const char* name_of(Pass pass) { return pass == Pass::kForward ? "forward" : "backward"; }

}  // namespace linescan
