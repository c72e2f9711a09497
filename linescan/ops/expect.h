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

// For tensors whose elements follow each other in row-major order.
inline void expect_contiguous(std::string_view op, std::string_view argument,
                              const TensorView& tensor) {
  const Shape expected = contiguous_strides(tensor.shape);
  for (int dim = 0; dim < tensor.shape.rank(); ++dim)
    if (tensor.shape[dim] > 1 && tensor.strides[dim] != expected[dim] &&
        tensor.shape.elements() > 0)
      throw_error<InvalidArgument>("{}: {} has strides {}, expected {} (contiguous)", op, argument,
                                   to_string(tensor.strides), to_string(expected));
}

// For tensors that are written to after they were read: every element has a place of its own. The
// strides have to show it, each reaching beyond everything that the smaller ones span.
inline void expect_own_places(std::string_view op, std::string_view argument,
                              const TensorView& tensor) {
  const Shape &shape = tensor.shape, &strides = tensor.strides;
  if (shape.elements() == 0) return;
  const auto reach = [&](int dim) { return strides[dim] < 0 ? -strides[dim] : strides[dim]; };
  for (int dim = 0; dim < shape.rank(); ++dim) {
    int64_t span = 1;
    for (int other = 0; other < shape.rank(); ++other)
      if (reach(other) < reach(dim) || (reach(other) == reach(dim) && other < dim))
        span += (shape[other] - 1) * reach(other);
    if (shape[dim] > 1 && reach(dim) < span)
      throw_error<InvalidArgument>(
          "{}: {} has shape {} and strides {}, in which elements share memory; expected a place "
          "for "
          "each",
          op, argument, to_string(shape), to_string(strides));
  }
}

inline constexpr std::string_view kParameterType = "float32, or float64 for float64 data";

}  // namespace linescan
