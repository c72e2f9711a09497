#include "linescan/ops/judged.h"

#include "linescan/base/error.h"
#include "linescan/base/half.h"

namespace linescan {

double read_element(const TensorView& tensor, int64_t i, int64_t j, int64_t k, int64_t l) {
  const int64_t index[] = {i, j, k, l};
  int64_t offset = 0;
  for (int dim = 0; dim < tensor.shape.rank(); ++dim) {
    if (index[dim] < 0 || index[dim] >= tensor.shape[dim])
      throw_error<InvalidArgument>("index {} of dimension {}: expected 0 to {}", index[dim], dim,
                                   tensor.shape[dim] - 1);
    offset += index[dim] * tensor.strides[dim];
  }
  switch (tensor.dtype) {
    case DType::kFloat64:
      return tensor.as<double>()[offset];
    case DType::kFloat32:
      return tensor.as<float>()[offset];
    case DType::kFloat16:
      return float16_to_float(tensor.as<uint16_t>()[offset]);
    default:
      return bfloat16_to_float(tensor.as<uint16_t>()[offset]);
  }
}

Verdict judge(const TensorView& got, const Judged& expected, double c) {
  const double accumulator_epsilon = epsilon_of(accumulator_of(got.dtype));
  const double output_epsilon = epsilon_of(got.dtype);
  // Below the smallest normal number rounding is absolute.
  const double tiny = got.dtype == DType::kFloat16 ? 0x1p-24 : 0x1p-126;
  Verdict worst;
  const Shape& shape = got.shape;
  int64_t position[4] = {};
  for (int64_t index = 0; index < shape.elements(); ++index) {
    const double value = expected.value[index];
    const double actual = read_element(got, position[0], position[1], position[2], position[3]);
    const double error = std::abs(actual - value);
    const double bound =
        c * accumulator_epsilon * expected.size[index] + output_epsilon * std::abs(value) + tiny;
    const bool both_nan = std::isnan(actual) && std::isnan(value);
    const bool equal = actual == value;  // infinities
    const double ratio = both_nan || equal ? 0 : std::isfinite(error) ? error / bound : HUGE_VAL;
    if (ratio > worst.worst_ratio || worst.index < 0)
      worst = {ratio, error, bound, actual, value, index};
    for (int dim = shape.rank() - 1; dim >= 0 && ++position[dim] == shape[dim]; --dim)
      position[dim] = 0;
  }
  return worst;
}

}  // namespace linescan
