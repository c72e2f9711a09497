#include "linescan/ops/expect.h"

#include <gtest/gtest.h>

namespace linescan {
namespace {

TensorView view(const Shape& shape, const Shape& strides) {
  TensorView view;
  view.shape = shape;
  view.strides = strides;
  view.defined = true;
  return view;
}

TEST(ExpectOwnPlaces, TakesEveryLayoutInWhichElementsAreApart) {
  for (const auto& [shape, strides] : {
           std::pair{Shape{2, 3, 4}, Shape{12, 4, 1}},  // row-major
           {Shape{2, 3, 4}, Shape{12, 1, 3}},           // turned
           {Shape{2, 3, 4}, Shape{100, 20, 2}},         // parts of something larger
           {Shape{1, 3, 1}, Shape{0, 1, 0}},            // expanded sizes of one
           {Shape{2, 3}, Shape{-3, 1}},                 // backwards
           {Shape{0, 3}, Shape{0, 0}},                  // nothing at all
           {Shape{}, Shape{}},                          // a number
       })
    EXPECT_NO_THROW(expect_own_places("op", "state", view(shape, strides))) << to_string(strides);
}

TEST(ExpectOwnPlaces, RefusesSharedMemoryInOneLine) {
  for (const auto& [shape, strides] : {
           std::pair{Shape{2, 3, 4}, Shape{0, 4, 1}},  // expanded
           {Shape{2, 3, 4}, Shape{11, 4, 1}},          // one element twice
           {Shape{3, 3}, Shape{1, 1}},                 // windows
           {Shape{2, 3}, Shape{-2, 1}},
       })
    EXPECT_THROW(expect_own_places("op", "state", view(shape, strides)), InvalidArgument)
        << to_string(strides);
  try {
    expect_own_places("op", "state", view({2, 3}, {0, 1}));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "op: state has shape [2, 3] and strides [0, 1], in which elements share memory; "
                 "expected a place for each");
  }
}

}  // namespace
}  // namespace linescan
