#include "linescan/train/anomaly.h"

#include <torch/torch.h>

#include <optional>

#include "linescan/base/error.h"
#include "linescan/train/tensor_statistics.h"

namespace linescan {
namespace {

// The modules of one step in the order of the forward pass.
struct Trail {
  std::vector<std::string> names;
  at::Tensor last;  // what the last of them gave, without its graph
};

void look_at_gradient(const Trail& trail, std::size_t number, const at::Tensor& gradient) {
  if (all_finite(gradient)) return;
  // The gradient of an output is made by whatever used it.
  const bool is_last = number + 1 == trail.names.size();
  throw_error<NotFinite>("the backward pass of {} made the gradient of {}'s output {}",
                         is_last ? "the loss" : trail.names[number + 1], trail.names[number],
                         to_string(statistics_of(gradient)));
}

void look_at_output(const Trail& trail, const std::string& name, const at::Tensor& output) {
  if (all_finite(output)) return;
  throw_error<NotFinite>("{} made {}; before it {}", name, to_string(statistics_of(output)),
                         trail.names.empty() ? std::string("came the input")
                                             : fmt::format("{} gave {}", trail.names.back(),
                                                           to_string(statistics_of(trail.last))));
}

}  // namespace

ModuleFilter detect_anomalies() {
  const auto trail = std::make_shared<Trail>();
  return seen_by([trail](const std::string& name, const at::Tensor& output) {
    look_at_output(*trail, name, output);
    // A block gives what its last part gave: nothing new.
    if (trail->last.defined() && trail->last.is_alias_of(output)) return;
    if (output.requires_grad()) {
      const std::size_t number = trail->names.size();
      output.register_hook([trail, number](const at::Tensor& gradient) {
        look_at_gradient(*trail, number, gradient);
      });
    }
    trail->names.push_back(name);
    trail->last = output.detach();
  });
}

}  // namespace linescan
