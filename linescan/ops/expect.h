// The checks that every operator's check() is made of. Messages name the operator, the argument,
// what was got and what was expected.
#pragma once

#include <string_view>

#include "linescan/base/error.h"
#include "linescan/base/tensor_view.h"

namespace linescan {

// `meaning`: the dimensions' names, "[batch, channels, length]".
inline void expect_shape(std::string_view op, std::string_view argument, const TensorView& tensor,
                         const Shape& expected, std::string_view meaning) {
  if (tensor.shape == expected) return;
  throw_error<InvalidArgument>("{}: {} has shape {}, expected {} = {}", op, argument,
                               to_string(tensor.shape), to_string(expected), meaning);
}

// `why`: where the expectation comes from.
inline void expect_dtype(std::string_view op, std::string_view argument, const TensorView& tensor,
                         DType expected, std::string_view why) {
  if (tensor.dtype == expected) return;
  throw_error<InvalidArgument>("{}: {} is {}, expected {} ({})", op, argument,
                               name_of(tensor.dtype), name_of(expected), why);
}

inline constexpr std::string_view kParameterType = "float32, or float64 for float64 data";

}  // namespace linescan
