#include "linescan/binding/layer_checks.h"

#include <fmt/ostream.h>

#include <cmath>

#include "linescan/base/error.h"
#include "linescan/binding/tensors.h"

namespace linescan {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kNorm = "layer_norm";
constexpr const char* kConv = "depthwise_conv";

void expect_floating(const char* op, const char* argument, at::ScalarType type) {
  if (!c10::isFloatingType(type))
    throw_error<InvalidArgument>("{}: {} is {}, expected a floating type", op, argument,
                                 c10::toString(type));
}

// One number a channel of x, of any floating type.
void expect_channels(const char* op, const char* argument, const Tensor& tensor, const Tensor& x) {
  if (tensor.dim() != 1 || tensor.sym_size(0) != x.sym_size(-1))
    throw_error<InvalidArgument>("{}: {} has shape {}, expected [channels] as x has them", op,
                                 argument, fmt::streamed(tensor.sym_sizes()));
  expect_floating(op, argument, tensor.scalar_type());
}

void check_rows(const Tensor& x) {
  if (x.dim() < 1 || x.sym_size(-1) < 1)
    throw_error<InvalidArgument>("{}: x has shape {}, expected [..., channels] with a channel",
                                 kNorm, fmt::streamed(x.sym_sizes()));
  expect_floating(kNorm, "x", x.scalar_type());
}

// Means and such: one number a row, in the type that the kernels keep them in.
void expect_statistics(const char* argument, const Tensor& tensor, const Tensor& x) {
  if (tensor.scalar_type() != parameter_type(x))
    throw_error<InvalidArgument>("{}: {} is {}, expected {}", kNorm, argument,
                                 c10::toString(tensor.scalar_type()),
                                 c10::toString(parameter_type(x)));
  if (sizes_known({tensor, x}))
    expect_sizes(kNorm, argument, tensor, x.sizes().slice(0, x.dim() - 1));
}

// A gradient, or what is added to one, of x's shape.
void expect_like(const char* op, const char* argument, const Tensor& tensor, const Tensor& x) {
  expect_floating(op, argument, tensor.scalar_type());
  if (sizes_known({tensor, x})) expect_sizes(op, argument, tensor, x.sizes());
}

}  // namespace

void check_layer_norm(const Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                      double epsilon, std::optional<at::ScalarType> out_dtype) {
  expect_devices(kNorm, x.device(), {{"weight", weight}, {"bias", bias}});
  check_rows(x);
  if (given(weight) != given(bias))
    throw_error<InvalidArgument>("{}: one of weight and bias is absent, expected both or none",
                                 kNorm);
  if (given(weight)) expect_channels(kNorm, "weight", *weight, x);
  if (given(bias)) expect_channels(kNorm, "bias", *bias, x);
  if (!(epsilon >= 0) || std::isinf(epsilon))
    throw_error<InvalidArgument>("{}: epsilon is {}, expected 0 or a positive number", kNorm,
                                 epsilon);
  if (out_dtype) expect_floating(kNorm, "out_dtype", *out_dtype);
}

void check_layer_norm_backward(const Tensor& grad_out, const Tensor& x, const Tensor& mean,
                               const Tensor& rstd, const OptionalTensor& weight,
                               const OptionalTensor& skip) {
  expect_devices(kNorm, x.device(),
                 {{"gradient of out", grad_out},
                  {"mean", mean},
                  {"rstd", rstd},
                  {"weight", weight},
                  {"skip", skip}});
  check_rows(x);
  if (given(weight)) expect_channels(kNorm, "weight", *weight, x);
  expect_statistics("mean", mean, x);
  expect_statistics("rstd", rstd, x);
  expect_like(kNorm, "gradient of out", grad_out, x);
  if (given(skip)) expect_like(kNorm, "skip", *skip, x);
}

void check_depthwise_conv(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  expect_devices(kConv, x.device(), {{"weight", weight}, {"bias", bias}});
  if (x.dim() != 4 || x.sym_size(3) < 1)
    throw_error<InvalidArgument>(
        "{}: x has shape {}, expected [batch, height, width, channels] with a channel", kConv,
        fmt::streamed(x.sym_sizes()));
  expect_floating(kConv, "x", x.scalar_type());
  if (weight.dim() != 4 || weight.sym_size(0) != x.sym_size(3) || weight.sym_size(1) != 1 ||
      weight.sym_size(2) != 3 || weight.sym_size(3) != 3)
    throw_error<InvalidArgument>(
        "{}: weight has shape {}, expected [channels, 1, 3, 3] with the channels of x", kConv,
        fmt::streamed(weight.sym_sizes()));
  expect_floating(kConv, "weight", weight.scalar_type());
  if (given(bias)) expect_channels(kConv, "bias", *bias, x);
}

void check_depthwise_conv_backward(const Tensor& grad_out, const Tensor& x, const Tensor& weight,
                                   const OptionalTensor& bias) {
  expect_devices(kConv, x.device(), {{"gradient of out", grad_out}});
  check_depthwise_conv(x, weight, bias);
  expect_like(kConv, "gradient of out", grad_out, x);
}

}  // namespace linescan
