// The way of ss2d by selective_scan, which GPUs take where there are several states, against the operator
// in double on the CPU.

#include "linescan/binding/ss2d_by_scans.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linescan/binding/cuda_operators.h"
#include "linescan/binding/ss2d.h"
#include "linescan/device/gpu.h"

namespace linescan {
namespace {

// All that ss2d_scan takes; x [batch, channels, height, width].
struct Arguments {
  at::Tensor x, projection, dt_weight, dt_bias, A_log, D;
  std::vector<int64_t> routes;

  Arguments(std::vector<int64_t> codes, int64_t channels, int64_t height, int64_t width,
            bool channels_last)
      : routes(std::move(codes)) {
    torch::manual_seed(3);
    const int64_t batch = 3, rank = 2, states = 18;
    const auto count = static_cast<int64_t>(routes.size());
    const auto draw = [](at::IntArrayRef shape) {
      return (torch::rand(shape) * 2 - 1).to(at::kDouble);  // exact in float
    };
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
at::Tensor ss2d_scan(const Arguments& a) {
  using Scan = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
      const at::Tensor&, at::IntArrayRef, std::optional<at::ScalarType>, bool,
      const std::optional<at::Tensor>&);
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("linescan::ss2d_scan", "").typed<Scan>();
  return std::get<0>(op.call(a.x, a.projection, a.dt_weight, a.dt_bias, a.A_log, a.D, a.routes,
                             at::kDouble, false, std::nullopt));
}

bool has_kernels() { return !built_for().machine_code.empty() || !built_for().ptx.empty(); }

// Before the tests of other files, whose gradients on the CPU would have LibTorch settle that there is no CUDA.
class LoadsCuda : public ::testing::Environment {
  void SetUp() override {
    if (!gpus().empty() && has_kernels()) load_cuda_operators();
  }
};
[[maybe_unused]] const auto* const loads_cuda = ::testing::AddGlobalTestEnvironment(new LoadsCuda);

class Ss2dByScans : public ::testing::TestWithParam<std::vector<int64_t>> {};

TEST_P(Ss2dByScans, AgreesWithTheCpu) {
  if (gpus().empty()) GTEST_SKIP() << "no GPU: " << why_no_gpu();
  if (!has_kernels()) GTEST_SKIP() << "a build without CUDA kernels";
  for (const int64_t channels : {6, 40, 96})
    for (const bool channels_last : {false, true}) {
      Arguments a(GetParam(), channels, 4, 7, channels_last);
      const at::Tensor gradient = (torch::rand(a.x.sizes()) - 0.5).to(at::kDouble);
      for (const at::Tensor& tensor : a.tensors()) tensor.requires_grad_();
      const at::Tensor expected = ss2d_scan(a);
      expected.backward(gradient);

      const torch::NoGradGuard no_grad;
      const auto away = [](const at::Tensor& tensor) { return tensor.to(at::kCUDA, at::kFloat); };
      const at::Tensor got =
          ss2d_by_scans(away(a.x), away(a.projection), away(a.dt_weight), away(a.dt_bias),
                        away(a.A_log), away(a.D), a.routes, at::kFloat);
      const auto close = [](const at::Tensor& one, const at::Tensor& other) {
        return at::allclose(one.cpu().to(at::kDouble), other, 1e-4, 1e-4);
      };
      EXPECT_TRUE(close(got, expected));
      EXPECT_EQ(got.strides(), a.x.strides());
      const auto [x, projection, dt_weight, dt_bias, A_log, D] =
          ss2d_by_scans_backward(away(gradient), away(a.x), away(a.projection), away(a.dt_weight),
                                 away(a.dt_bias), away(a.A_log), away(a.D), a.routes);
      const std::vector<at::Tensor> gradients = {x, projection, dt_weight, dt_bias, A_log, D};
      for (std::size_t i = 0; i < gradients.size(); ++i)
        EXPECT_TRUE(close(gradients[i], a.tensors()[i].grad())) << i << ' ' << channels;
    }
}

INSTANTIATE_TEST_SUITE_P(Routes, Ss2dByScans,
                         ::testing::Values(std::vector<int64_t>{0},
                                           std::vector<int64_t>{0, 1, 6, 7},
                                           std::vector<int64_t>{0, 0, 6, 6},
                                           std::vector<int64_t>{2, 3, 4, 5}));

TEST(Ss2dByScansRule, TakesManyStatesOfRoutesThatDoNotStartAnew) {
  const Gpu& gpu = find_gpu("h100");
  const auto pays = [&](int64_t states, const std::vector<int64_t>& routes, DType dtype) {
    const Ss2dSize size = {.batch = 4,
                           .channels = 96,
                           .height = 56,
                           .width = 56,
                           .states = states,
                           .rank = 6,
                           .routes = 4,
                           .dtype = dtype};
    return scans_pay(size, routes, gpu);
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EXPECT_FALSE(pays(1, {0, 1, 6, 7}, dtype));
    EXPECT_FALSE(pays(2, {0, 1, 6, 7}, dtype));
    EXPECT_FALSE(pays(16, {0, 1, 6, 9}, dtype));
    EXPECT_TRUE(pays(15, {0, 1, 6, 7}, dtype));
    // All but what has kernels of its own.
    EXPECT_EQ(pays(16, {0, 1, 6, 7}, dtype), dtype == DType::kFloat32);
  }
}

}  // namespace
}  // namespace linescan
