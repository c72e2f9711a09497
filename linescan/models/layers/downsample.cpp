#include "linescan/models/layers/downsample.h"

#include "linescan/base/math.h"
#include "linescan/models/layers/choice.h"
#include "linescan/models/layers/dense.h"

namespace linescan {
namespace {

constexpr Choice<DownsampleKind> kKinds[] = {{"v1", DownsampleKind::kMerge},
                                             {"v2", DownsampleKind::kPatches},
                                             {"v3", DownsampleKind::kOverlapping},
                                             {"none", DownsampleKind::kNone}};

// The four neighbours of every 2x2 square side by side, down the columns first:
// [batch, height, width, C] -> [batch, ceil(height / 2), ceil(width / 2), 4 C]. Odd sizes get a
// row or column of zeros.
at::Tensor merge_neighbours(const at::Tensor& x) {
  const int64_t odd_rows = x.size(1) % 2, odd_columns = x.size(2) % 2;
  const at::Tensor even =
      odd_rows + odd_columns == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, odd_columns, 0, odd_rows});
  const int64_t rows = even.size(1) / 2, columns = even.size(2) / 2, channels = even.size(3);
  return even.view({x.size(0), rows, 2, columns, 2, channels})
      .permute({0, 1, 3, 4, 2, 5})
      .reshape({x.size(0), rows, columns, 4 * channels});
}

}  // namespace

DownsampleKind parse_downsample(std::string_view name) {
  return read_choice(kKinds, "downsample", name);
}

int64_t downsample_output(DownsampleKind kind, int64_t size) {
  switch (kind) {
    case DownsampleKind::kNone:
      return size;
    case DownsampleKind::kPatches:
      return size / 2;
    default:
      return ceil_div(size, 2);
  }
}

DownsampleImpl::DownsampleImpl(DownsampleKind kind, int64_t inputs, int64_t outputs,
                               NormKind norm) {
  if (kind == DownsampleKind::kMerge) {
    norm_ = register_module("norm", Norm(norm, 4 * inputs));
    reduction_ = register_module("reduction", make_linear(4 * inputs, outputs, /*bias=*/false));
    return;
  }
  const bool overlapping = kind == DownsampleKind::kOverlapping;
  convolution_ = register_module(
      "1", torch::nn::Conv2d(torch::nn::Conv2dOptions(inputs, outputs, overlapping ? 3 : 2)
                                 .stride(2)
                                 .padding(overlapping ? 1 : 0)));
  norm_ = register_module("3", Norm(norm, outputs));
}

at::Tensor DownsampleImpl::forward(const at::Tensor& x) {
  if (convolution_) return norm_->forward(convolve(convolution_, x));
  return project(norm_->forward(merge_neighbours(x)), reduction_->weight, reduction_->bias);
}

}  // namespace linescan
