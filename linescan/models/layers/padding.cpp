#include "linescan/models/layers/padding.h"

#include <fmt/ranges.h>

#include "linescan/base/error.h"

namespace linescan {

Padding::Padding(const at::Tensor& x, const at::Tensor& mask)
    : batch_(x.size(0)), length_(x.size(1)) {
  if (mask.dim() != 2 || mask.size(0) != batch_ || mask.size(1) != length_)
    throw_error<InvalidArgument>(
        "padding: mask has shape [{}], expected [{}, {}] = [batch, length]",
        fmt::join(mask.sizes(), ", "), batch_, length_);
  const at::Tensor kept = mask.ne(0);
  places_ = kept.flatten().nonzero().squeeze(1);
  cu_seqlens_ = at::constant_pad_nd(kept.sum(1).cumsum(0), {1, 0});
}

at::Tensor Padding::remove(const at::Tensor& x) const {
  return x.flatten(0, 1).index_select(0, places_).unsqueeze(0);
}

at::Tensor Padding::restore(const at::Tensor& packed) const {
  const at::Tensor tokens = packed.squeeze(0);
  at::DimVector sizes(tokens.sizes());
  sizes[0] = batch_ * length_;
  return at::zeros(sizes, tokens.options())
      .index_copy(0, places_, tokens)
      .unflatten(0, {batch_, length_});
}

}  // namespace linescan
