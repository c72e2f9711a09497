#include "linescan/models/compute.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "linescan/base/error.h"
#include "linescan/device/gpu.h"

namespace linescan {
namespace {

TEST(Compute, TheCpuKnowsTwoPrecisions) {
  EXPECT_EQ(open_compute("cpu").precision, Precision::kFp32);
  EXPECT_EQ(open_compute("cpu", "bf16").precision, Precision::kBf16);
  EXPECT_EQ(describe(open_compute("cpu")), "cpu");
  EXPECT_THROW(open_compute("cpu", "fp16"), Unsupported);
  EXPECT_THROW(open_compute("cpu", "tf32"), Unsupported);
  EXPECT_THROW(open_compute("cpu", "fp8"), InvalidArgument);
}

TEST(Compute, DeviceNamesAreChecked) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"})
    EXPECT_THROW(open_compute(name), InvalidArgument) << name;
}

TEST(Compute, AGpuThatIsNotThereIsRefused) {
  if (!gpus().empty()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THROW(open_compute("cuda"), Unsupported);
  EXPECT_THROW(open_compute("cuda:7", "bf16"), Unsupported);
}

TEST(Compute, EveryPrecisionHasItsName) {
  for (const char* name : {"fp32", "tf32", "bf16", "fp16"})
    EXPECT_EQ(name_of(parse_precision(name)), name);
}

TEST(ComputeScope, SwitchesAutocastAndBack) {
  const at::Tensor a = torch::randn({4, 4});
  {
    const ComputeScope scope(open_compute("cpu", "bf16"));
    EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kBFloat16);
    {
      const ComputeScope inner(open_compute("cpu", "fp32"));
      EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kFloat);
    }
    EXPECT_EQ(at::matmul(a, a).scalar_type(), at::kBFloat16);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST(Compute, TensorsForTheCpuStayWhereTheyAre) {
  const Compute cpu;
  const at::Tensor x = empty_for_upload({2, 3}, at::kFloat, cpu);
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_EQ(to_device(x, cpu).data_ptr(), x.data_ptr());
}

}  // namespace
}  // namespace linescan
