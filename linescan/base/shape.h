// Sizes and strides of a tensor: a short list of 64-bit integers that needs no heap.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>

#include "linescan/base/string_forward.h"

namespace linescan {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> sizes) {
    for (int64_t size : sizes) push_back(size);
  }

  constexpr int rank() const { return rank_; }
  constexpr int64_t operator[](int dim) const { return sizes_[dim]; }
  constexpr int64_t& operator[](int dim) { return sizes_[dim]; }
  constexpr void push_back(int64_t size) {
    assert(rank_ < kMaxRank);
    sizes_[rank_++] = size;
  }
  constexpr const int64_t* begin() const { return sizes_.data(); }
  constexpr const int64_t* end() const { return sizes_.data() + rank_; }

  // Number of elements; 1 for rank 0.
  constexpr int64_t elements() const {
    int64_t product = 1;
    for (int64_t size : *this) product *= size;
    return product;
  }

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i)
      if (a.sizes_[i] != b.sizes_[i]) return false;
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

// "[2, 64, 8]"
std::string to_string(const Shape& shape);

// Strides, in elements, of a row-major tensor of this shape.
Shape contiguous_strides(const Shape& shape);

}  // namespace linescan
