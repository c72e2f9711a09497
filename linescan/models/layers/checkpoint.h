// Activation checkpointing: keep a block's input only, and run the block again in the backward pass.
// Chen et al. 2016, arXiv:1604.06174.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

namespace linescan {

// run(x), where `run` is a computation of `module` on x. Gradients of x and of the module's
// parameters equal those of the plain call: the second run sees the same random numbers, the same
// autocast state, and leaves the module's buffers alone. The plain call when no gradient is
// recorded. A second derivative throws Unsupported.
at::Tensor checkpointed(std::shared_ptr<torch::nn::Module> module,
                        std::function<at::Tensor(const at::Tensor&)> run, const at::Tensor& x);

}  // namespace linescan
