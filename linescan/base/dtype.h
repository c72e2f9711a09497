// The number types that tensors may have, and nothing about how arithmetic on them is done.
#pragma once

#include <cstddef>

namespace linescan {

enum class DType { kFloat32, kFloat64, kFloat16, kBFloat16 };

// Bytes of one element.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 8;
    case DType::kFloat32:
      return 4;
    default:
      return 2;
  }
}

// PyTorch's name of the type: "float32", "float64", "float16", "bfloat16".
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return "float64";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat16:
      return "float16";
    default:
      return "bfloat16";
  }
}

// The type in which states and sums are kept: float32, or float64 for float64 data.
constexpr DType accumulator_of(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

// Spacing of numbers near 1: the unit of every error bound.
constexpr double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat64:
      return 0x1p-52;
    case DType::kFloat32:
      return 0x1p-23;
    case DType::kFloat16:
      return 0x1p-10;
    default:
      return 0x1p-7;
  }
}

}  // namespace linescan
