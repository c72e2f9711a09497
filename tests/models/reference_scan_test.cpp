// The slower ways through a scan against the fused one, in double: same numbers, same gradients.

#include "linescan/models/layers/reference_scan.h"

#include <gtest/gtest.h>

#include "linescan/base/error.h"
#include "tests/models/small_model.h"

namespace linescan {
namespace {

struct Problem {
  at::Tensor x;
  ScanParameters parameters;

  Problem(int64_t routes, int64_t height, int64_t width, bool channels_last) {
    torch::manual_seed(5);
    const int64_t channels = 6, rank = 2, states = 3;
    const auto draw = [](at::IntArrayRef shape) {
      return (torch::rand(shape, at::kDouble) * 2 - 1).requires_grad_();
    };
    x = torch::rand({2, channels, height, width}, at::kDouble) * 2 - 1;
    if (channels_last) x = x.contiguous(at::MemoryFormat::ChannelsLast);
    x.requires_grad_();
    parameters = {draw({routes, rank + 2 * states, channels}), draw({routes, channels, rank}),
                  draw({routes, channels}), draw({routes * channels, states}),
                  draw({routes * channels})};
  }
  std::vector<at::Tensor> tensors() const {
    const auto& [x_weight, dt_weight, dt_bias, A_log, D] = parameters;
    return {x, x_weight, dt_weight, dt_bias, A_log, D};
  }
};

class ReferenceScan : public ::testing::TestWithParam<ScanPath> {};

TEST_P(ReferenceScan, AgreesWithTheFusedOperatorAndSoDoItsGradients) {
  const std::vector<std::vector<int64_t>> sets = {{0, 1, 6, 7}, {0, 5, 6, 3}, {2, 4}, {0}};
  for (const std::vector<int64_t>& routes : sets)
    for (const bool channels_last : {false, true}) {
      const Problem p(static_cast<int64_t>(routes.size()), 4, 7, channels_last);
      const at::Tensor upstream = torch::rand_like(p.x) - 0.5;
      const auto run = [&](ScanPath path) {
        const at::Tensor y = ss2d_along(path, p.x, p.parameters, routes, {});
        std::vector<at::Tensor> all = torch::autograd::grad({y}, p.tensors(), {upstream});
        all.insert(all.begin(), y.detach());
        return all;
      };
      const std::vector<at::Tensor> expected = run(ScanPath::kFused), got = run(GetParam());
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::allclose(got[i], expected[i], 1e-10, 1e-11)) << "result " << i;
      EXPECT_EQ(got[0].strides(), expected[0].strides());
    }
}

TEST_P(ReferenceScan, GivesAWholeNetworkTheSameLogits) {
  VMambaConfig config = small_config();
  config.forward_type = "v0";
  const at::Tensor x = random_image(2, 2, 16, 20).to(at::kDouble);
  const auto logits = [&](const char* path) {
    config.scan_path = path;
    VMamba model = seeded_model(config);
    model->to(at::kDouble);
    return model->forward(x);
  };
  const at::Tensor expected = logits("fused");
  EXPECT_TRUE(at::allclose(logits(GetParam() == ScanPath::kCopies ? "copies" : "einsum"), expected,
                           1e-10, 1e-11));
}

INSTANTIATE_TEST_SUITE_P(Paths, ReferenceScan,
                         ::testing::Values(ScanPath::kEinsum, ScanPath::kCopies));

TEST(ReferenceScanRefusals, RoutesThatRestartCannotBeCopied) {
  const Problem p(2, 4, 5, true);
  EXPECT_THROW(ss2d_along(ScanPath::kCopies, p.x, p.parameters, {8, 10}, {}), Unsupported);
  VMambaConfig config = small_config();
  config.scan_path = "copies";
  config.routes = "cascade";
  EXPECT_THROW(config.validate(), InvalidArgument);
  config.scan_path = "copied";
  config.routes = "cross";
  EXPECT_THROW(config.validate(), InvalidArgument);
}

}  // namespace
}  // namespace linescan
