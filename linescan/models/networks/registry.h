// Networks by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "linescan/models/networks/vmamba_config.h"

namespace linescan {

// The nine published networks and vmamba_fashion, the small one for 28 x 28 grey images.
std::vector<std::string> model_names();

// Throws InvalidArgument with the nearest name.
VMambaConfig named_model(std::string_view name);

}  // namespace linescan
