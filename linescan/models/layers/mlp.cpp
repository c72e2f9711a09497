#include "linescan/models/layers/mlp.h"

#include "linescan/models/layers/dense.h"

namespace linescan {

MlpImpl::MlpImpl(const MlpOptions& options)
    : options_(options),
      fc1_(make_linear(options.channels, options.gated ? 2 * options.hidden : options.hidden,
                       /*bias=*/true)),
      fc2_(make_linear(options.hidden, options.channels, /*bias=*/true)) {
  register_module("fc1", fc1_);
  register_module("fc2", fc2_);
}

at::Tensor MlpImpl::hidden(const at::Tensor& x) {
  if (options_.gated) {
    // Two products on halves of the weight give two dense results; one product would have to be
    // cut into strided halves.
    const auto weights = fc1_->weight.chunk(2);
    const auto biases = fc1_->bias.chunk(2);
    const at::Tensor gate = activate(project(x, weights[1], biases[1]), options_.activation);
    return project(x, weights[0], biases[0]) * gate;
  }
  const at::Tensor hidden = activate(project(x, fc1_->weight, fc1_->bias), options_.activation);
  return at::dropout(hidden, options_.drop, is_training());
}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return at::dropout(project(hidden(x), fc2_->weight, fc2_->bias), options_.drop, is_training());
}

Branch MlpImpl::forward_normed(const at::Tensor& x, Norm& norm) {
  if (options_.gated || (options_.drop > 0 && is_training())) return {forward(norm->forward(x)), x};
  const auto [hidden, residual] = norm->forward_projected(x, fc1_->weight, fc1_->bias);
  if (at::GradMode::is_enabled())
    return {activated_projection(hidden, options_.activation, fc2_->weight, fc2_->bias), residual};
  return {project(activate(hidden, options_.activation), fc2_->weight, fc2_->bias), residual};
}

at::Tensor MlpImpl::add_to(const at::Tensor& residual, const at::Tensor& x) {
  if (options_.drop > 0 && is_training()) return residual + forward(x);
  return add_projection(residual, hidden(x), fc2_->weight, fc2_->bias);
}

}  // namespace linescan
