#include "linescan/models/layers/vss_block.h"

#include "linescan/models/layers/checkpoint.h"
#include "linescan/models/layers/drop_path.h"
#include "linescan/models/layers/part.h"
#include "linescan/models/module_watch.h"

namespace linescan {

VssBlockImpl::VssBlockImpl(const VssBlockOptions& options) : options_(options) {
  if (options.op.inner > 0) {
    norm_ = register_module("norm", Norm(options.norm, options.op.channels));
    op_ = register_module("op", Ss2dLayer(options.op));
  }
  if (options.mlp.hidden > 0) {
    norm2_ = register_module("norm2", Norm(options.norm, options.mlp.channels));
    mlp_ = register_module("mlp", Mlp(options.mlp));
  }
}

template <typename Layer>
at::Tensor VssBlockImpl::add_layer(const at::Tensor& x, Norm& norm, Layer& layer) {
  if (options_.post_norm)
    return add_branch(x, norm->forward(layer->forward(x)), options_.drop_path, is_training());
  if (x.is_cuda() && norm->is_layer_norm()) {
    const Branch branch = layer->forward_normed(x, norm);
    return add_branch(branch.residual, branch.value, options_.drop_path, is_training());
  }
  const at::Tensor normed = norm->forward(x);
  if (options_.drop_path > 0 && is_training())
    return add_branch(x, layer->forward(normed), options_.drop_path, /*training=*/true);
  return layer->add_to(x, normed);
}

at::Tensor VssBlockImpl::run(const at::Tensor& x) {
  at::Tensor y = x;
  if (op_) y = run_module("op", [&] { return add_layer(y, norm_, op_); });
  const PartScope part(Part::kMlp);
  if (mlp_) y = run_module("mlp", [&] { return add_layer(y, norm2_, mlp_); });
  return y;
}

at::Tensor VssBlockImpl::forward(const at::Tensor& x) {
  if (!options_.checkpoint) return run(x);
  return checkpointed(
      shared_from_this(), [this](const at::Tensor& input) { return run(input); }, x);
}

}  // namespace linescan
