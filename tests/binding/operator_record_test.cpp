// What the bindings write down about the operators that they start (base/activity.h).

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "linescan/base/activity.h"
#include "linescan/binding/causal_conv1d.h"
#include "linescan/binding/gated_delta_rule.h"
#include "linescan/binding/selective_scan.h"
#include "linescan/binding/ss2d.h"

namespace linescan {
namespace {

void expect_recorded(const char* op, const std::function<at::Tensor()>& run) {
  const int64_t before = activity().ops;
  const at::Tensor out = run();
  Activity now = activity();
  EXPECT_EQ(now.op, op);
  EXPECT_EQ(now.ops, before + 1) << op;
  EXPECT_FALSE(now.op_running);
  EXPECT_NE(now.plan.find("forward"), std::string::npos) << now.plan;
  out.sum().backward();
  now = activity();
  EXPECT_EQ(now.op, op);
  EXPECT_EQ(now.ops, before + 2) << op;
  EXPECT_NE(now.plan.find("backward"), std::string::npos) << now.plan;
}

at::Tensor random(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

TEST(OperatorRecord, HasEveryOperatorWithItsPlan) {
  expect_recorded("selective_scan", [] {
    return std::get<0>(selective_scan(random({1, 4, 9}), random({1, 4, 9}), -torch::rand({4, 2}),
                                      random({1, 2, 9}), random({1, 2, 9})));
  });
  expect_recorded("ss2d", [] {
    constexpr int64_t kRoutes[] = {0, 1, 6, 7};
    return ss2d(random({1, 4, 3, 5}), random({4, 3, 4}), {}, random({4, 4, 1}), random({4, 4}),
                random({16, 1}), random({16}), kRoutes);
  });
  expect_recorded("causal_conv1d", [] {
    return std::get<0>(causal_conv1d(random({1, 9, 4}), random({4, 3})));
  });
  expect_recorded("gated_delta_rule", [] {
    return std::get<0>(gated_delta_rule(random({1, 9, 1, 4}), random({1, 9, 1, 4}),
                                        random({1, 9, 1, 4}), -torch::rand({1, 9, 1}),
                                        random({1, 9, 1})));
  });
}

}  // namespace
}  // namespace linescan
