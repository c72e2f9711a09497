// The modules of a network while they run: "patch_embed", "layers.0.blocks.1.op", "layers.0.blocks.1",
// "layers.0.downsample", "classifier". Each says its name (base/activity.h), and whoever wants to see
// what it gives, or to give something else instead, watches.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>

#include "linescan/base/activity.h"

namespace linescan {

// Called with a module's name and what it gave, inner modules before those around them; what it
// returns goes on. May throw: that ends the run of the network.
using ModuleFilter = std::function<at::Tensor(const std::string& name, at::Tensor output)>;

// A filter that changes nothing; empty for an empty function.
ModuleFilter seen_by(
    std::function<void(const std::string& name, const at::Tensor& output)> observer);

// Watches what this thread runs, for as long as the object lives. Of several, each sees what the one
// that was made before it has returned. An empty filter watches nothing.
class ModuleWatch {
 public:
  explicit ModuleWatch(ModuleFilter filter);
  ~ModuleWatch();
  ModuleWatch(const ModuleWatch&) = delete;
  ModuleWatch& operator=(const ModuleWatch&) = delete;
};

// What the watches make of the output of the module that runs; for run_module().
at::Tensor show_output(at::Tensor output);

// compute(), as the module called `name` within the one that runs.
template <class Compute>
at::Tensor run_module(std::string_view name, const Compute& compute) {
  const ModuleRunning running(name);
  return show_output(compute());
}

}  // namespace linescan
