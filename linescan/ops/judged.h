// Numbers that a double-precision reference vouches for, and how far a kernel may be from them.
//
// A reference is written once, over a number type. Run with Tracked numbers it yields, beside each
// value, its size: the sum of the absolute values of all the terms that it is made of, which is
// what rounding errors are proportional to. A kernel passes if
//
//   |got - value| <= c * eps(accumulator) * size + eps(output) * |value|
//
// with one small c an operator (its README says why).
#pragma once

#include <cmath>
#include <vector>

#include "linescan/base/dtype.h"
#include "linescan/base/tensor_view.h"

namespace linescan {

// Values in row-major order of the tensor's shape.
struct Judged {
  Shape shape;
  std::vector<double> value;
  std::vector<double> size;

  explicit Judged(const Shape& shape = {0})
      : shape(shape), value(shape.elements()), size(shape.elements()) {}
};

// A double that knows the size of its terms. Operators propagate first-order rounding.
struct Tracked {
  double value = 0, size = 0;

  Tracked() = default;
  Tracked(double exact) : value(exact), size(std::abs(exact)) {}  // NOLINT: conversion is wanted
  Tracked(double value, double size) : value(value), size(size) {}

  friend Tracked operator+(Tracked a, Tracked b) { return {a.value + b.value, a.size + b.size}; }
  friend Tracked operator-(Tracked a) { return {-a.value, a.size}; }
  friend Tracked operator-(Tracked a, Tracked b) { return a + -b; }
  // Each factor's error is multiplied by the other's value, not by its size: sizes of long products
  // would grow without bound where the numbers themselves decay.
  friend Tracked operator*(Tracked a, Tracked b) {
    return {a.value * b.value, std::abs(a.value) * b.size + a.size * std::abs(b.value)};
  }
  Tracked& operator+=(Tracked b) { return *this = *this + b; }
};

// f(x) with derivative slope: an error of eps * size in x becomes |slope| times that.
inline Tracked smooth(double value, double slope, Tracked x) {
  return {value, std::abs(value) + std::abs(slope) * x.size};
}

inline void add(Judged& tensor, int64_t index, Tracked term) {
  tensor.value[index] += term.value;
  tensor.size[index] += term.size;
}

inline Tracked exp(Tracked x) {
  const double value = std::exp(x.value);
  return smooth(value, value, x);
}

inline Tracked sigmoid(Tracked x) {
  const double value = 1 / (1 + std::exp(-x.value));
  return smooth(value, value * (1 - value), x);
}

// softplus(x) = log(1 + exp(x)), and x itself above 20; its derivative likewise.
inline Tracked softplus(Tracked x) {
  if (x.value > 20) return x;
  return smooth(std::log1p(std::exp(x.value)), 1 / (1 + std::exp(-x.value)), x);
}
inline Tracked softplus_slope(Tracked x) { return x.value > 20 ? Tracked(1.0) : sigmoid(x); }

// Element (i, j, k, ...) of a tensor of any type and strides, as double. Missing dimensions are 0. Throws InvalidArgument for an
// element that is not there: references are compiled without the address sanitizer.
double read_element(const TensorView& tensor, int64_t i, int64_t j = 0, int64_t k = 0,
                    int64_t l = 0);

// What an operator's reference makes of inputs, forward and backward: it serves any number of runs with them.
template <class Results>
struct ExpectedResults {
  Results ahead, back;
};

// The largest ratio of error to bound over all elements of `got`; > 1 fails. NaN in both agrees.
struct Verdict {
  double worst_ratio = 0, error = 0, bound = 0, got = 0, expected = 0;
  int64_t index = -1;  // row-major, of the worst element
};
Verdict judge(const TensorView& got, const Judged& expected, double c);

}  // namespace linescan
