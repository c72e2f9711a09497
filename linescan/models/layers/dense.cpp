#include "linescan/models/layers/dense.h"

namespace linescan {
namespace {

// [rows, channels]. Two dimensions keep autograd's view bookkeeping out of the product's result,
// so that add_projection may add in place.
at::Tensor rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor unflatten(const at::Tensor& product, const at::Tensor& like) {
  std::vector<int64_t> sizes = like.sizes().vec();
  sizes.back() = product.size(-1);
  return product.view(sizes);
}

}  // namespace

torch::nn::Linear make_linear(int64_t inputs, int64_t outputs, bool bias) {
  torch::nn::Linear layer(torch::nn::LinearOptions(inputs, outputs).bias(bias));
  torch::NoGradGuard no_grad;
  // The customary truncation at +-2 lies 100 deviations out: it never cuts.
  layer->weight.normal_(0.0, 0.02);
  if (bias) layer->bias.zero_();
  return layer;
}

at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return unflatten(at::linear(rows(x), weight, bias), x);
}

at::Tensor add_projection(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias) {
  at::Tensor product = at::linear(rows(x), weight, bias);
  // Under autocast the product is narrower than the residual, which then decides the type.
  if (product.scalar_type() != residual.scalar_type()) return residual + unflatten(product, x);
  return unflatten(product.add_(rows(residual)), x);
}

at::Tensor convolve(torch::nn::Conv2d& convolution, const at::Tensor& x) {
  // One-channel and one-pixel tensors fit both memory formats, and PyTorch may then answer in the
  // other one: contiguous() costs nothing where the layout is already right.
  return channels_last(convolution->forward(channels_second(x))).contiguous();
}

}  // namespace linescan
