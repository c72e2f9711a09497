// Sums of partial results against sums in double: long and short lines, any strides and types, few and many.

#include <gtest/gtest.h>

#include <cmath>

#include "linescan/ops/device_code/ordered_sums.h"
#include "tests/support/gpu_sample.h"

namespace linescan::testing {
namespace {

struct SumCase {
  int64_t parts;
  Shape shape;  // of four sizes
  DType dtype;
  Layout layout;

  friend std::ostream& operator<<(std::ostream& out, const SumCase& c) {
    return out << c.parts << " parts of " << to_string(c.shape) << ' ' << name_of(c.dtype)
               << " layout " << static_cast<int>(c.layout);
  }
};

class OrderedSumsGpu : public ::testing::TestWithParam<SumCase> {};

TEST_P(OrderedSumsGpu, AreTheSums) {
  if (!have_gpu()) GTEST_SKIP() << why_no_test_gpu();
  const SumCase& c = GetParam();
  std::mt19937_64 random(7);
  const int64_t count = c.shape.elements();
  SampleTensor parts = SampleTensor::uniform({c.parts, count}, DType::kFloat32, -1, 1, random);
  SampleTensor to(c.shape, c.dtype, c.layout);
  {
    GpuTensors tensors;
    OrderedSum sum;
    sum.from = tensors.take(parts).as<float>();
    sum.parts = c.parts;
    sum.part_stride = count;
    const TensorView target = tensors.take(to);
    sum.to = target.as<unsigned char>();
    sum.dtype = c.dtype;
    for (int dim = 0; dim < 4; ++dim) {
      sum.sizes[dim] = c.shape[dim];
      sum.strides[dim] = target.strides[dim] * static_cast<int64_t>(size_of(c.dtype));
    }
    OrderedSums sums;
    sums.add(sum);
    launch_ordered_sums("sums", sums, GpuStream{});
    tensors.bring_back();
  }
  int64_t at = 0, wrong = 0;
  for_each_index(c.shape, [&](int64_t i, int64_t j, int64_t k, int64_t t) {
    double expected = 0, terms = 0;
    for (int64_t part = 0; part < c.parts; ++part) {
      const double term = read_element(parts.view(), part, at);
      expected += term, terms += std::abs(term);
    }
    ++at;
    const double bound =
        4 * epsilon_of(DType::kFloat32) * terms + epsilon_of(c.dtype) * std::abs(expected);
    const double got = read_element(to.view(), i, j, k, t);
    if (!(std::abs(got - expected) <= bound)) ++wrong;  // NaN is wrong
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(to.margins_intact());
}

// From 65 536 sums on, four neighbours at once where addresses allow it.
INSTANTIATE_TEST_SUITE_P(
    Shapes, OrderedSumsGpu,
    ::testing::Values(SumCase{1, {1, 1, 1, 1}, DType::kFloat32, Layout::kLengthLast},
                      SumCase{40, {2, 3, 4, 5}, DType::kBFloat16, Layout::kLengthLast},
                      SumCase{3, {2, 3, 5, 7}, DType::kFloat32, Layout::kGaps},
                      SumCase{7, {3, 1, 1, 300}, DType::kFloat16, Layout::kLengthLast},
                      SumCase{5, {16, 4, 32, 36}, DType::kFloat32, Layout::kLengthLast},
                      SumCase{33, {16, 4, 32, 36}, DType::kBFloat16, Layout::kLengthLast},
                      SumCase{2, {16, 4, 32, 36}, DType::kFloat16, Layout::kGaps},
                      SumCase{4, {16, 4, 33, 35}, DType::kBFloat16, Layout::kLengthLast},
                      SumCase{3, {2, 64, 6, 128}, DType::kFloat32, Layout::kChannelsLast}));

}  // namespace
}  // namespace linescan::testing
