#include "linescan/train/loss_scale.h"

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace linescan {

LossScale::LossScale(at::Device device)
    : factor_(at::full({1}, kInitial, at::TensorOptions(at::kFloat).device(device))),
      good_updates_(at::zeros({1}, at::TensorOptions(at::kInt).device(device))) {}

void LossScale::update(const at::Tensor& overflow) {
  at::_amp_update_scale_(factor_, good_updates_, overflow, kGrowth, kBackoff, kInterval);
}

double LossScale::value() const { return factor_.item<double>(); }
int64_t LossScale::good_updates() const { return good_updates_.item<int64_t>(); }

void LossScale::restore(double value, int64_t good_updates) {
  factor_.fill_(value);
  good_updates_.fill_(good_updates);
}

}  // namespace linescan
