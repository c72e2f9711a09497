// Batches of sequences of unequal length: padding out, and in again.
#pragma once

#include <torch/torch.h>

namespace linescan {

class Padding {
 public:
  // mask [batch, length] is 0 where x [batch, length, ...] is padding, at any place. Waits for a GPU:
  // the number of tokens decides shapes. Throws InvalidArgument where the mask does not fit x.
  Padding(const at::Tensor& x, const at::Tensor& mask);

  // [1, tokens, ...]: what is no padding, in order.
  at::Tensor remove(const at::Tensor& x) const;
  // The reverse; padding is 0.
  at::Tensor restore(const at::Tensor& packed) const;
  // [batch + 1] int64: where each sequence begins and ends.
  const at::Tensor& cu_seqlens() const { return cu_seqlens_; }

 private:
  int64_t batch_, length_;
  at::Tensor places_;  // of the tokens in [batch * length]
  at::Tensor cu_seqlens_;
};

}  // namespace linescan
