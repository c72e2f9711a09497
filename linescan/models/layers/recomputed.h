// Matrix products that keep less for the backward pass: what a norm or an activation puts in front of
// the product is computed again there from what they were given. A pass over memory is bought with
// the space of a tensor in every block (docs/decisions/0012-fused-layers-on-gpus.md).
//
// The results equal those of the plain calls; used on GPUs, where the space matters.
#pragma once

#include <ATen/core/Tensor.h>

#include "linescan/models/layers/activation.h"

namespace linescan {

// The type that autocast wants on the tensor's device, or the tensor's own.
at::ScalarType autocast_type(const at::Tensor& tensor);

// `tensor` in that type; of a parameter, once as long as autocast is on.
at::Tensor autocast(const at::Tensor& tensor);

struct NormedProjection {
  at::Tensor result;  // project(layer_norm(x), weight, bias)
  // x itself. What follows on the residual way must start here: its gradient is then added to the
  // norm's where that is computed.
  at::Tensor residual;
};

// x [..., channels]; norm_weight, norm_bias [channels] float32; weight [outputs, channels], bias
// [outputs] or undefined.
NormedProjection normed_projection(const at::Tensor& x, const at::Tensor& norm_weight,
                                   const at::Tensor& norm_bias, double epsilon,
                                   const at::Tensor& weight, const at::Tensor& bias);

// project(activation(x), weight, bias)
at::Tensor activated_projection(const at::Tensor& x, Activation activation,
                                const at::Tensor& weight, const at::Tensor& bias);

}  // namespace linescan
