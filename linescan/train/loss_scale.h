// Gradient scaling for float16 (Micikevicius et al. 2018, arXiv:1710.03740): the loss is multiplied
// by a factor that keeps small gradients above the type's smallest number; gradients that overflow
// cost one update and halve it.
//
// Everything stays on the device: nothing waits.
#pragma once

#include <ATen/core/Tensor.h>

namespace linescan {

class LossScale {
 public:
  static constexpr double kInitial = 65536, kGrowth = 2, kBackoff = 0.5;
  static constexpr int64_t kInterval = 2000;  // updates without overflow after which it grows
  // Below this factor the gradients do not overflow, they are broken.
  static constexpr double kSmallest = 0x1p-10;

  explicit LossScale(at::Device device);

  const at::Tensor& factor() const { return factor_; }  // float32 [1]

  // After an update; `overflow` float32 [1] is 1 if it was left out.
  void update(const at::Tensor& overflow);

  // For checkpoints; reading waits for the device.
  double value() const;
  int64_t good_updates() const;
  void restore(double value, int64_t good_updates);

 private:
  at::Tensor factor_, good_updates_;
};

}  // namespace linescan
