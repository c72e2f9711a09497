// Products that recompute their input: the same numbers and gradients as the plain calls, and the
// layers built of them against the layers as the CPU runs them.

#include "linescan/models/layers/recomputed.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linescan/base/error.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/layers/mlp.h"
#include "linescan/models/layers/ss2d_layer.h"

namespace linescan {
namespace {

at::Tensor leaf(at::IntArrayRef sizes) {
  return torch::randn(sizes, torch::kDouble).requires_grad_(true);
}

void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected,
                 double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(at::allclose(got[i], expected[i], tolerance, tolerance)) << "tensor " << i;
}

TEST(NormedProjection, HasTheGradientsOfNormAndProductAndResidual) {
  torch::manual_seed(1);
  const at::Tensor x = leaf({2, 3, 4, 6}), gamma = leaf({6}), beta = leaf({6});
  const at::Tensor weight = leaf({5, 6}), bias = leaf({5});
  const std::vector<at::Tensor> inputs = {x, gamma, beta, weight, bias};
  const auto loss = [](const at::Tensor& result, const at::Tensor& residual) {
    return result.square().sum() + residual.pow(3).sum();
  };
  const NormedProjection got = normed_projection(x, gamma, beta, 1e-5, weight, bias);
  const at::Tensor plain = project(at::layer_norm(x, {6}, gamma, beta, 1e-5), weight, bias);
  expect_same({got.result, got.residual}, {plain, x}, 1e-12);
  expect_same(torch::autograd::grad({loss(got.result, got.residual)}, inputs),
              torch::autograd::grad({loss(plain, x)}, inputs), 1e-10);
}

TEST(NormedProjection, ResultOrResidualMayBeUnused) {
  torch::manual_seed(2);
  const at::Tensor x = leaf({7, 6}), gamma = leaf({6}), beta = leaf({6}), weight = leaf({5, 6});
  const auto run = [&] { return normed_projection(x, gamma, beta, 1e-5, weight, {}); };
  const at::Tensor plain = at::linear(at::layer_norm(x, {6}, gamma, beta, 1e-5), weight);
  expect_same(torch::autograd::grad({run().result.square().sum()}, {x, weight}),
              torch::autograd::grad({plain.square().sum()}, {x, weight}), 1e-10);
  expect_same(torch::autograd::grad({run().residual.square().sum()}, {x}), {2 * x}, 1e-12);
}

class ActivatedProjection : public ::testing::TestWithParam<Activation> {};

TEST_P(ActivatedProjection, HasTheGradientsOfActivationAndProduct) {
  torch::manual_seed(3);
  const at::Tensor x = leaf({4, 3, 6}), weight = leaf({5, 6}), bias = leaf({5});
  const std::vector<at::Tensor> inputs = {x, weight, bias};
  const at::Tensor got = activated_projection(x, GetParam(), weight, bias);
  const at::Tensor plain = project(activate(x, GetParam()), weight, bias);
  expect_same({got}, {plain}, 1e-12);
  expect_same(torch::autograd::grad({got.square().sum()}, inputs),
              torch::autograd::grad({plain.square().sum()}, inputs), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(All, ActivatedProjection,
                         ::testing::Values(Activation::kSilu, Activation::kGelu, Activation::kRelu,
                                           Activation::kSigmoid));

TEST(NormedProjection, SecondDerivativesAreRefused) {
  const at::Tensor x = leaf({3, 4}), gamma = leaf({4}), beta = leaf({4}), weight = leaf({2, 4});
  const at::Tensor result = normed_projection(x, gamma, beta, 1e-5, weight, {}).result;
  EXPECT_THROW(torch::autograd::grad({result.sum()}, {x}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true),
               Unsupported);
}

// Both ways of a layer behind a norm, with gradients of all parameters.
template <typename Layer>
void compare_ways(Layer& layer, Norm& norm, const at::Tensor& x) {
  std::vector<at::Tensor> inputs = {x};
  for (const at::Tensor& parameter : norm->parameters()) inputs.push_back(parameter);
  for (const at::Tensor& parameter : layer->parameters()) inputs.push_back(parameter);
  const Branch branch = layer->forward_normed(x, norm);
  const at::Tensor fused = branch.residual + branch.value;
  const at::Tensor plain = x + layer->forward(norm->forward(x));
  expect_same({fused}, {plain}, 1e-5);
  expect_same(torch::autograd::grad({fused.square().sum()}, inputs),
              torch::autograd::grad({plain.square().sum()}, inputs), 2e-4);
  const torch::NoGradGuard no_grad;
  const Branch without = layer->forward_normed(x, norm);
  expect_same({without.residual + without.value}, {plain}, 1e-5);
}

TEST(ForwardNormed, MlpGoesBothWays) {
  torch::manual_seed(4);
  for (const bool gated : {false, true}) {
    Norm norm(NormKind::kLayer, 8);
    Mlp mlp(MlpOptions{.channels = 8, .hidden = 12, .gated = gated});
    compare_ways(mlp, norm, torch::randn({2, 3, 4, 8}).requires_grad_(true));
  }
}

TEST(ForwardNormed, Ss2dGoesBothWays) {
  torch::manual_seed(5);
  for (const char* type : {"v05_noz", "v05", "v05_noz_oact", "v05_noz_onnone", "v05_noz_ondwconv3",
                           "v05_noz_onsigmoid"}) {
    SCOPED_TRACE(type);
    Norm norm(NormKind::kLayer, 8);
    Ss2dOptions options;
    options.channels = 8;
    options.inner = 8;
    options.type = parse_forward_type(type);
    Ss2dLayer layer(options);
    compare_ways(layer, norm, torch::randn({2, 5, 4, 8}).requires_grad_(true));
  }
}

}  // namespace
}  // namespace linescan
