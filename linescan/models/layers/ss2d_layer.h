// The SS2D layer: a product over the channels, a depthwise convolution, selective scans along
// several routes over the image, a norm, a product back.
//
//   u = activation(conv(W_in x))     y = out_norm(ss2d(u)), GELU(y) if asked for
//   result = W_out (y * gate(z))     z: second half of W_in x, if there is a gate
//
// Liu et al. 2024, arXiv:2401.10166. Parameter names are those of the published checkpoints.
#pragma once

#include <torch/torch.h>

#include "linescan/models/layers/activation.h"
#include "linescan/models/layers/forward_type.h"
#include "linescan/models/layers/norm.h"
#include "linescan/models/layers/reference_scan.h"
#include "linescan/models/layers/scan_init.h"

namespace linescan {

struct Ss2dOptions {
  int64_t channels = 0;
  int64_t inner = 0;  // channels of the scan
  int64_t states = 1;
  int64_t dt_rank = 1;
  ForwardType type;
  int64_t kernel = 3;  // of the depthwise convolution, odd; 0 or 1: none
  bool conv_bias = false;
  Activation activation = Activation::kSilu;  // after the convolution, and of the gate
  ScanInit init = ScanInit::kV0;
  ScanPath path = ScanPath::kFused;
  double drop = 0;
  // Cascade only: add the reversed direction of each line without turning it back, as the published
  // code does and its checkpoints expect.
  bool authors_cascade = false;
};

// Parameters in_proj.weight, conv2d.{weight,bias}, x_proj_weight, dt_projs_weight, dt_projs_bias,
// A_logs, Ds, out_norm.*, out_proj.weight.
class Ss2dLayerImpl : public torch::nn::Module {
 public:
  explicit Ss2dLayerImpl(const Ss2dOptions& options);

  // x [batch, height, width, channels] -> the same shape.
  at::Tensor forward(const at::Tensor& x);
  // residual + forward(x), a pass cheaper.
  at::Tensor add_to(const at::Tensor& residual, const at::Tensor& x);
  // forward(norm(x)), keeping less for the backward pass where there is no gate.
  Branch forward_normed(const at::Tensor& x, Norm& norm);

 private:
  at::Tensor mix(const at::Tensor& x);        // everything before out_proj
  at::Tensor convolved(const at::Tensor& u);  // convolution and activation
  at::Tensor scan(const at::Tensor& u);       // u, result [batch, height, width, inner]
  at::Tensor cascade(const at::Tensor& u);    // rows, then columns
  at::Tensor normalise(const at::Tensor& y);
  // ss2d over `routes` with the weight groups that start at `first_group`.
  at::Tensor scan_routes(const at::Tensor& u, at::IntArrayRef routes, int64_t first_group);
  at::Tensor scan_lines(const at::Tensor& u, int64_t column_bit, int64_t first_group);

  Ss2dOptions options_;
  torch::nn::Linear in_proj_{nullptr}, out_proj_{nullptr};
  torch::nn::Conv2d convolution_{nullptr}, out_convolution_{nullptr};
  Norm out_norm_{nullptr};
  ScanParameters scan_parameters_;
};
TORCH_MODULE(Ss2dLayer);

}  // namespace linescan
