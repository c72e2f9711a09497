// Finding the module that makes a NaN or an infinity while the step runs, not afterwards: every module's
// output and the gradient that comes back to it are looked at. Costs a pass over each of them, and on a
// GPU a wait.
#pragma once

#include <string>

#include "linescan/models/module_watch.h"

namespace linescan {

// For a ModuleWatch around forward, loss and backward of one step. Throws NotFinite with the module's path,
// its output's statistics and those of the module before it:
//   "layers.0.blocks.1.op made float32 [8, 6, 6, 8]: 12 NaN, ...; before it patch_embed gave float32 ..."
//   "the backward pass of layers.0.blocks.1.mlp made the gradient float32 [..]: .."
ModuleFilter detect_anomalies();

}  // namespace linescan
