// The way of ss2d by selective_scan against the operator's own kernels, in double on the CPU; on GPUs
// it stands in for them where there are many states.

#include "linescan/binding/ss2d_by_scans.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linescan/binding/ss2d.h"

namespace linescan {
namespace {

// All that ss2d_scan takes; x [batch, channels, height, width].
struct Arguments {
  at::Tensor x, projection, dt_weight, dt_bias, A_log, D;
  std::vector<int64_t> routes;

  Arguments(std::vector<int64_t> codes, int64_t height, int64_t width, bool channels_last)
      : routes(std::move(codes)) {
    torch::manual_seed(3);
    const int64_t batch = 3, channels = 6, rank = 2, states = 5;
    const auto count = static_cast<int64_t>(routes.size());
    const auto draw = [](at::IntArrayRef shape) { return torch::rand(shape, at::kDouble) * 2 - 1; };
    x = draw({batch, channels, height, width});
    if (channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    projection = draw({batch, height * width, count * (rank + 2 * states)});
    dt_weight = draw({count, channels, rank});
    dt_bias = draw({count, channels});
    A_log = draw({count * channels, states});
    D = draw({count * channels});
  }
  std::vector<at::Tensor> tensors() const { return {x, projection, dt_weight, dt_bias, A_log, D}; }
};

// linescan::ss2d_scan, with gradients.
at::Tensor own_kernels(const Arguments& a) {
  using Scan = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
      const at::Tensor&, at::IntArrayRef, std::optional<at::ScalarType>, bool);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("linescan::ss2d_scan", "").typed<Scan>();
  return std::get<0>(op.call(a.x, a.projection, a.dt_weight, a.dt_bias, a.A_log, a.D, a.routes,
                             at::kDouble, false));
}

class Ss2dByScans : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(Ss2dByScans, AgreesWithTheOperatorsKernels) {
  for (const bool channels_last : {false, true}) {
    Arguments a(GetParam(), 4, 7, channels_last);
    const at::Tensor gradient = torch::rand_like(a.x) - 0.5;
    for (const at::Tensor& tensor : a.tensors()) tensor.requires_grad_();
    const at::Tensor expected = own_kernels(a);
    expected.backward(gradient);

    const torch::NoGradGuard no_grad;
    const at::Tensor got = ss2d_by_scans(a.x, a.projection, a.dt_weight, a.dt_bias, a.A_log, a.D,
                                         a.routes, at::kDouble);
    EXPECT_TRUE(at::allclose(got, expected, 1e-11, 1e-11));
    EXPECT_EQ(got.strides(), a.x.strides());
    const auto [x, projection, dt_weight, dt_bias, A_log, D] = ss2d_by_scans_backward(
        gradient, a.x, a.projection, a.dt_weight, a.dt_bias, a.A_log, a.D, a.routes);
    const std::vector<at::Tensor> gradients = {x, projection, dt_weight, dt_bias, A_log, D};
    for (std::size_t i = 0; i < gradients.size(); ++i)
      EXPECT_TRUE(at::allclose(gradients[i], a.tensors()[i].grad(), 1e-10, 1e-10)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Routes, Ss2dByScans,
                         ::testing::Values(std::vector<int64_t>{0},
                                           std::vector<int64_t>{0, 1, 6, 7},
                                           std::vector<int64_t>{0, 0, 6, 6},
                                           std::vector<int64_t>{2, 3, 4, 5}));

TEST(Ss2dByScansRule, TakesManyStatesOfRoutesThatDoNotStartAnew) {
  EXPECT_TRUE(scans_pay(16, {0, 1, 6, 7}));
  EXPECT_FALSE(scans_pay(1, {0, 1, 6, 7}));
  EXPECT_FALSE(scans_pay(16, {0, 9}));
}

}  // namespace
}  // namespace linescan
