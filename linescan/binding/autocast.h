// What autocast makes of an operator's arguments.
#pragma once

#include <ATen/autocast_mode.h>

namespace linescan {

// While it lives autocast does nothing: the operator's own kernel for autocast casts, once.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
class AutocastArguments {
 public:
  // In autocast's type. Tensors and optional tensors; those that are no floating-point data stay as they are.
  template <class Argument>
  Argument data(const Argument& argument) const {
    return at::autocast::cached_cast(type_, argument, kDevice);
  }
  // In float32: what a recurrence accumulates by.
  template <class Argument>
  Argument parameter(const Argument& argument) const {
    return at::autocast::cached_cast(at::kFloat, argument, kDevice);
  }

 private:
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{kKey};
  at::ScalarType type_ = at::autocast::get_autocast_dtype(kDevice);
};

}  // namespace linescan
