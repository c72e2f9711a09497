// Tensors that own their memory, for judging operators: any type, any order of dimensions, any
// misalignment, and a poisoned margin on both sides that must stay untouched. Used by the tests and
// by `linescan check`.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "linescan/base/half.h"
#include "linescan/base/tensor_view.h"
#include "linescan/ops/judged.h"

namespace linescan {

// How elements lie in memory. kLengthLast: row-major. kChannelsLast: dimension 1 varies fastest.
// kGaps: row-major with every other element of the last dimension unused. kApart: row-major with eight elements unused behind
// the last dimension.
enum class Layout { kLengthLast, kChannelsLast, kGaps, kApart };

class SampleTensor {
 public:
  SampleTensor() = default;
  // Filled with NaN, so that an output element which is never written shows.
  SampleTensor(const Shape& shape, DType dtype, Layout layout = Layout::kLengthLast,
               int misalign = 0);

  static SampleTensor uniform(const Shape& shape, DType dtype, double low, double high,
                              std::mt19937_64& random, Layout layout = Layout::kLengthLast,
                              int misalign = 0);

  const TensorView& view() const { return view_; }
  explicit operator bool() const { return view_.defined; }

  // True if nothing outside the tensor's elements was written.
  bool margins_intact() const;
  std::vector<std::byte> bytes() const { return memory_; }
  std::vector<std::byte>& memory() { return memory_; }  // the whole allocation, margins included

  void set(int64_t i, int64_t j, int64_t k, int64_t l, double value);

 private:
  std::vector<std::byte> memory_;
  TensorView view_;
};

// Memory for an operator's workspace, filled with NaN patterns: a kernel that reads what it has not
// written shows. Whole numbers that are read so are -1; another `filling` shows those that are then harmless.
class Workspace {
 public:
  explicit Workspace(int64_t bytes, int filling = 0xFF) : memory_(new std::byte[bytes + 64]) {
    std::memset(memory_.get(), filling, bytes + 64);
  }
  std::byte* data() {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
    return memory_.get() + (64 - address % 64) % 64;
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
};

// A result of an operator beside its reference.
struct NamedVerdict {
  std::string name;
  Verdict verdict;
  bool margins_intact;  // nothing was written outside the tensor

  bool passed() const { return verdict.worst_ratio <= 1 && margins_intact; }
};

inline NamedVerdict judge_sample(const char* name, const SampleTensor& got, const Judged& expected,
                                 double c) {
  return {name, judge(got.view(), expected, c), got.margins_intact()};
}

// Calls visit(i, j, k, l) for every index of a shape of rank <= 4.
template <class Visit>
void for_each_index(const Shape& shape, const Visit& visit) {
  int64_t size[4] = {1, 1, 1, 1};
  for (int dim = 0; dim < shape.rank(); ++dim) size[dim] = shape[dim];
  for (int64_t i = 0; i < size[0]; ++i)
    for (int64_t j = 0; j < size[1]; ++j)
      for (int64_t k = 0; k < size[2]; ++k)
        for (int64_t l = 0; l < size[3]; ++l) visit(i, j, k, l);
}

}  // namespace linescan
