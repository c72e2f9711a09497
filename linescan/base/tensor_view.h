// A tensor as the operators see it: where it lies, its type, its sizes and strides. Owns nothing.
#pragma once

#include "linescan/base/dtype.h"
#include "linescan/base/shape.h"

namespace linescan {

struct TensorView {
  void* data = nullptr;  // null together with defined == false: an absent optional tensor
  DType dtype = DType::kFloat32;
  Shape shape;
  Shape strides;  // in elements; 0 and negative values are legal
  bool defined = false;

  explicit operator bool() const { return defined; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

inline TensorView contiguous_view(void* data, DType dtype, const Shape& shape) {
  return {data, dtype, shape, contiguous_strides(shape), true};
}

}  // namespace linescan
