// Stochastic depth: a residual branch is left out for some of the samples of a batch.
// Huang et al. 2016, arXiv:1603.09382.
#pragma once

#include <ATen/core/Tensor.h>

namespace linescan {

// residual + branch, with the branch of each sample dropped with probability `rate` and the kept
// ones scaled by 1 / (1 - rate). rate 0 or training == false: the plain sum. Both tensors are
// [batch, ...]; `branch` must be the caller's own (it may be overwritten). The draw comes from
// PyTorch's generator: one number a sample, so the seed decides it.
at::Tensor add_branch(const at::Tensor& residual, at::Tensor branch, double rate, bool training);

}  // namespace linescan
