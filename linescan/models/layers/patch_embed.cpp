#include "linescan/models/layers/patch_embed.h"

#include "linescan/base/math.h"
#include "linescan/models/layers/activation.h"
#include "linescan/models/layers/choice.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/layers/recomputed.h"

namespace linescan {
namespace {

constexpr Choice<StemKind> kStems[] = {{"v1", StemKind::kPatches}, {"v2", StemKind::kOverlapping}};

torch::nn::Conv2d overlapping(int64_t inputs, int64_t outputs, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(inputs, outputs, /*kernel_size=*/3).stride(stride).padding(1));
}

}  // namespace

StemKind parse_stem(std::string_view name) { return read_choice(kStems, "stem", name); }

int64_t first_stride(int64_t stride) { return stride == 1 ? 1 : 2; }
int64_t second_stride(int64_t stride) { return stride == 4 ? 2 : 1; }

int64_t stem_output(StemKind kind, int64_t stride, int64_t size) {
  if (kind == StemKind::kPatches) return size / stride;
  return ceil_div(ceil_div(size, first_stride(stride)), second_stride(stride));
}

PatchEmbedImpl::PatchEmbedImpl(const PatchEmbedOptions& options) {
  const auto make_norm = [&](const char* name, int64_t channels) {
    return options.normalise ? register_module(name, Norm(options.norm, channels)) : Norm(nullptr);
  };
  if (options.kind == StemKind::kPatches) {
    first_ = register_module(
        "0", torch::nn::Conv2d(
                 torch::nn::Conv2dOptions(options.in_channels, options.channels, options.stride)
                     .stride(options.stride)));
    first_norm_ = make_norm("2", options.channels);
    return;
  }
  const int64_t half = options.channels / 2;
  first_ =
      register_module("0", overlapping(options.in_channels, half, first_stride(options.stride)));
  first_norm_ = make_norm("2", half);
  second_ =
      register_module("5", overlapping(half, options.channels, second_stride(options.stride)));
  second_norm_ = make_norm("7", options.channels);
}

at::Tensor PatchEmbedImpl::forward(const at::Tensor& x) {
  // The convolution would cast the images under autocast; together with the transposition that is
  // one pass.
  const at::Tensor images = x.is_cuda() ? x.to(autocast_type(x), /*non_blocking=*/false,
                                               /*copy=*/false, at::MemoryFormat::ChannelsLast)
                                        : x;
  at::Tensor grid = convolve(first_, channels_last(images).contiguous());
  if (first_norm_) grid = first_norm_->forward(grid);
  if (!second_) return grid;
  grid = convolve(second_, activate(grid, Activation::kGelu));
  return second_norm_ ? second_norm_->forward(grid) : grid;
}

}  // namespace linescan
