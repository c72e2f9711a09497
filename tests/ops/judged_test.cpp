#include "linescan/ops/judged.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "linescan/base/error.h"
#include "linescan/ops/sample_tensor.h"

namespace linescan {
namespace {

TEST(ReadElement, RefusesElementsThatAreNotThere) {
  SampleTensor tensor({2, 3}, DType::kBFloat16);
  tensor.set(1, 2, 0, 0, -4);
  TensorView view = tensor.view();
  EXPECT_EQ(read_element(view, 1, 2), -4);
  for (const auto& [i, j] : {std::pair{2, 0}, {0, 3}, {-1, 0}, {0, -1}})
    EXPECT_THROW(read_element(view, i, j), InvalidArgument) << i << ", " << j;
  try {
    read_element(view, 1, 3);
    ADD_FAILURE();
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()), "index 3 of dimension 1: expected 0 to 2");
  }
  view.shape = {};  // one number: missing dimensions are not looked at
  EXPECT_NO_THROW(read_element(view, 0));
}

}  // namespace
}  // namespace linescan
