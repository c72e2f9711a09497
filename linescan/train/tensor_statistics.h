// What there is to say about the values of a tensor when some of them are bad.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace linescan {

struct TensorStatistics {
  std::vector<int64_t> sizes;
  std::string type;  // "float32", "bfloat16", ...
  int64_t nans = 0, infinities = 0;
  double least = 0, most = 0, mean = 0;  // of the finite values; 0 if there is none

  bool finite() const { return nans == 0 && infinities == 0; }
};

// Waits for the tensor's device. An undefined tensor has no values.
TensorStatistics statistics_of(const at::Tensor& tensor);

// Whether all values are finite: quicker.
bool all_finite(const at::Tensor& tensor);

// The first of [samples, ...] that has such a value, or -1.
int64_t first_bad_sample(const at::Tensor& tensor);

// "float32 [8, 96, 7, 7]: 12 NaN, 0 infinite, the others from -1.2 to 3.4, mean 0.1"
std::string to_string(const TensorStatistics& statistics);

// "[8, 96]"
std::string sizes_text(at::IntArrayRef sizes);

}  // namespace linescan
