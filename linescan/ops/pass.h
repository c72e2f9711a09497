// Forward or backward: every operator plans them apart.
#pragma once

namespace linescan {

enum class Pass { kForward, kBackward };

}  // namespace linescan
