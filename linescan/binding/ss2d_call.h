// The tensors of a call of ss2d as a problem: what its bindings share.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>
#include <vector>

#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

// Of x, projection, dt_proj_weight, dt_proj_bias, A_log, D.
using Ss2dTensors6 =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Keeps the tensors alive beside the views on them. Checks everything. Arguments in the order of the schemas.
struct Ss2dCall {
  static constexpr std::string_view kName = "ss2d";

  at::Tensor x, projection, dt_weight, dt_bias, A_log, D;
  std::vector<int64_t> routes;
  Ss2dProblem problem;

  // of_slice: `projection` is room for those of some images, see Ss2dProjectionSlices.
  Ss2dCall(const at::Tensor& x, const at::Tensor& projection, const at::Tensor& dt_weight,
           const at::Tensor& dt_bias, const at::Tensor& A_log, const at::Tensor& D,
           at::IntArrayRef routes, bool of_slice = false);

  // For the backward pass: what the forward pass kept, empty if nothing.
  void use_states(const at::Tensor& states);
  // Whether it goes by way of selective_scan (ss2d_by_scans.h).
  bool by_scans() const;
};

// The upstream gradient and new tensors for the results, but for that of projection, with the views on all of them.
struct Ss2dNewGradients {
  at::Tensor upstream;
  Ss2dTensors6 results;
  Ss2dGradients views;

  // gprojection: where the gradient of `projection` goes, of a slice's if the call has no more.
  Ss2dNewGradients(const at::Tensor& grad_out, const Ss2dCall& call, const at::Tensor& gprojection);
};

// The operator wants rows that follow each other; anything else is made contiguous, once.
at::Tensor with_even_rows(const at::Tensor& plane);

void check_ss2d_gradient(const at::Tensor& grad_out, const at::Tensor& states, const at::Tensor& x);

// Sizes of a call on a GPU; while tracing: these only.
Ss2dSize gpu_size(const at::Tensor& x, const at::Tensor& dt_weight, const at::Tensor& A_log,
                  at::IntArrayRef routes);
// What the forward pass keeps for the backward pass on GPUs; nothing if it is not to keep.
at::Tensor empty_states(const at::Tensor& x, const at::Tensor& dt_weight, const at::Tensor& A_log,
                        at::IntArrayRef routes, bool keep);

// A new tensor of the same sizes, contiguous.
at::Tensor empty_rows(const at::Tensor& tensor);

}  // namespace linescan
