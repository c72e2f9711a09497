// ss2d with several states on GPUs, as selective_scan with the pixels of a route as its steps. Its
// kernels share a pixel's work among the states; those of ops/ss2d walk the plane once a state, but for those of whole planes of
// half data (docs/decisions/0043-ss2d-walks-planes-with-several-states.md, 0046).
// docs/decisions/0016-ss2d-of-many-states.md says what that costs and gains.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "linescan/ops/selective_scan/plan.h"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

// Whether this way is the better one: 4 states or more, no route that starts anew at every line, and no kernels of ops/ss2d
// that meet all states of a pixel at once.
bool scans_pay(const Ss2dSize& size, at::IntArrayRef routes, const Gpu& gpu);
// Of a problem on `gpu`, whose data may not be what those kernels read.
bool scans_pay(const Ss2dProblem& problem, const Gpu& gpu);

// The scan that one part of the batch becomes; its batch says how many images are a part.
SelectiveScanSize scan_of_part(const Ss2dSize& size, Pass pass);

// As linescan::ss2d_scan and linescan::ss2d_scan_backward, which have checked the arguments, on GPUs.
// Works through the batch in parts of up to 1280 MB of workspace, 2048 MB with more than 16 states.
at::Tensor ss2d_by_scans(const at::Tensor& x, const at::Tensor& projection,
                         const at::Tensor& dt_weight, const at::Tensor& dt_bias,
                         const at::Tensor& A_log, const at::Tensor& D, at::IntArrayRef routes,
                         at::ScalarType out_dtype);

// The gradients of x, projection, dt_weight, dt_bias, A_log and D.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
ss2d_by_scans_backward(const at::Tensor& grad_out, const at::Tensor& x,
                       const at::Tensor& projection, const at::Tensor& dt_weight,
                       const at::Tensor& dt_bias, const at::Tensor& A_log, const at::Tensor& D,
                       at::IntArrayRef routes);

}  // namespace linescan
