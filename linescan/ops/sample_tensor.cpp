#include "linescan/ops/sample_tensor.h"

#include <cmath>
#include <numeric>

namespace linescan {
namespace {

constexpr int64_t kMargin = 256;  // bytes, on each side
constexpr std::byte kPoison{0xA5};

int64_t offset_of(const TensorView& view, const int64_t (&index)[4]) {
  int64_t offset = 0;
  for (int dim = 0; dim < view.shape.rank(); ++dim) offset += index[dim] * view.strides[dim];
  return offset;
}

void write(const TensorView& view, int64_t offset, double value) {
  switch (view.dtype) {
    case DType::kFloat64:
      view.as<double>()[offset] = value;
      break;
    case DType::kFloat32:
      view.as<float>()[offset] = static_cast<float>(value);
      break;
    case DType::kFloat16:
      view.as<uint16_t>()[offset] = float_to_float16(static_cast<float>(value));
      break;
    case DType::kBFloat16:
      view.as<uint16_t>()[offset] = float_to_bfloat16(static_cast<float>(value));
      break;
  }
}

}  // namespace

SampleTensor::SampleTensor(const Shape& shape, DType dtype, Layout layout, int misalign) {
  Shape strides = contiguous_strides(shape);
  int64_t span = shape.elements();
  const int rank = shape.rank();
  if (layout == Layout::kChannelsLast && rank >= 3) {
    // [batch, channels, rest...] with channels innermost.
    int64_t step = shape[1];
    strides[1] = 1;
    for (int dim = rank - 1; dim >= 2; --dim) {
      strides[dim] = step;
      step *= shape[dim];
    }
    strides[0] = step;
  } else if (layout == Layout::kGaps) {
    for (int dim = 0; dim < rank; ++dim) strides[dim] *= 2;
    span *= 2;
  } else if (layout == Layout::kApart) {
    span = 1;
    for (int dim = rank - 1; dim >= 0; --dim) {
      strides[dim] = span;
      span *= shape[dim] + (dim == rank - 1 ? 8 : 0);
    }
  }
  const int64_t element = static_cast<int64_t>(size_of(dtype));
  const int64_t start = kMargin + misalign * element;
  memory_.assign(start + span * element + kMargin, kPoison);
  view_ = {memory_.data() + start, dtype, shape, strides, true};
  for_each_index(shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) { set(i, j, k, l, NAN); });
}

SampleTensor SampleTensor::uniform(const Shape& shape, DType dtype, double low, double high,
                                   std::mt19937_64& random, Layout layout, int misalign) {
  SampleTensor tensor(shape, dtype, layout, misalign);
  std::uniform_real_distribution<double> draw(low, high);
  for_each_index(shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
    tensor.set(i, j, k, l, draw(random));
  });
  return tensor;
}

void SampleTensor::set(int64_t i, int64_t j, int64_t k, int64_t l, double value) {
  write(view_, offset_of(view_, {i, j, k, l}), value);
}

bool SampleTensor::margins_intact() const {
  std::vector<bool> owned(memory_.size());
  const auto start = static_cast<std::byte*>(view_.data) - memory_.data();
  const int64_t element = static_cast<int64_t>(size_of(view_.dtype));
  for_each_index(view_.shape, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
    const int64_t at = start + offset_of(view_, {i, j, k, l}) * element;
    for (int64_t byte = 0; byte < element; ++byte) owned[at + byte] = true;
  });
  for (std::size_t i = 0; i < memory_.size(); ++i)
    if (!owned[i] && memory_[i] != kPoison) return false;
  return true;
}

}  // namespace linescan
