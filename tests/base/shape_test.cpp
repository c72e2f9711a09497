#include "linescan/base/shape.h"

#include <gtest/gtest.h>

namespace linescan {
namespace {

TEST(Shape, SizesAndElements) {
  const Shape shape{2, 64, 8};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[1], 64);
  EXPECT_EQ(shape.elements(), 1024);
  EXPECT_EQ((Shape{5, 0, 3}.elements()), 0);
  EXPECT_EQ(Shape().rank(), 0);
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ((Shape{1 << 20, 1 << 20, 4}.elements()), int64_t{1} << 42);
}

TEST(Shape, EqualityLooksAtRankAndSizes) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3} == Shape{2, 4}));
  EXPECT_FALSE((Shape{2, 3} == Shape{2, 3, 1}));
  EXPECT_FALSE((Shape{0} == Shape{}));
}

TEST(Shape, GrowsToTheLargestRank) {
  Shape shape;
  for (int i = 0; i < Shape::kMaxRank; ++i) shape.push_back(i + 1);
  EXPECT_EQ(shape, (Shape{1, 2, 3, 4, 5, 6}));
}

TEST(Shape, Prints) {
  EXPECT_EQ(to_string(Shape{2, 64, 8}), "[2, 64, 8]");
  EXPECT_EQ(to_string(Shape{7}), "[7]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(ContiguousStrides, RowMajor) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({7}), (Shape{1}));
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Shape{0, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), (Shape{}));
}

}  // namespace
}  // namespace linescan
