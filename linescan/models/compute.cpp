#include "linescan/models/compute.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <charconv>

#include "linescan/base/error.h"
#include "linescan/binding/cuda_operators.h"
#include "linescan/device/gpu.h"
#include "linescan/models/layers/choice.h"

namespace linescan {
namespace {

constexpr Choice<Precision> kPrecisions[] = {{"fp32", Precision::kFp32},
                                             {"tf32", Precision::kTf32},
                                             {"bf16", Precision::kBf16},
                                             {"fp16", Precision::kFp16}};

bool is_half(Precision precision) {
  return precision == Precision::kBf16 || precision == Precision::kFp16;
}

// Number of the GPU that "cuda" or "cuda:N" means; nothing for another text.
std::optional<int> gpu_number(std::string_view name) {
  if (name == "cuda") return 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int number = -1;
  const char* end = name.data() + name.size();
  const auto [last, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
  return error == std::errc() && last == end && number >= 0 ? std::optional(number) : std::nullopt;
}

void open_gpu(at::Device device, Precision precision) {
  load_cuda_operators();
  const int count = static_cast<int>(gpus().size());
  if (device.index() >= count)
    throw_error<Unsupported>("device is {}; this machine has cuda:0 to cuda:{}", device.str(),
                             count - 1);
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  guard.setDevice(device);
  guard.exchangeStream(guard.getStreamFromGlobalPool(device));
  const bool tf32 = precision == Precision::kTf32;
  at::globalContext().setAllowTF32CuBLAS(tf32);
  at::globalContext().setAllowTF32CuDNN(tf32);
  at::globalContext().setBenchmarkCuDNN(true);  // shapes repeat: the search pays at once
}

}  // namespace

Precision parse_precision(std::string_view name) {
  return read_choice(kPrecisions, "precision", name);
}

std::string_view name_of(Precision precision) {
  return kPrecisions[static_cast<int>(precision)].name;
}

Compute open_compute(std::string_view device, std::string_view precision) {
  Compute compute;
  compute.precision = parse_precision(precision);
  if (device == "cpu") {
    if (compute.precision == Precision::kTf32 || compute.precision == Precision::kFp16)
      throw_error<Unsupported>("precision is {}; on the CPU there are fp32 and bf16", precision);
    return compute;
  }
  const std::optional<int> number = gpu_number(device);
  if (!number) throw_error<InvalidArgument>("device is '{}', expected cpu, cuda or cuda:N", device);
  compute.device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(*number));
  open_gpu(compute.device, compute.precision);
  return compute;
}

std::string describe(const Compute& compute) {
  return compute.on_gpu() ? gpus().at(compute.device.index()).name : "cpu";
}

at::Tensor to_device(const at::Tensor& tensor, const Compute& compute) {
  if (!compute.on_gpu() || tensor.is_cuda()) return tensor;
  // Memory that is not page-locked would be copied by the driver while this thread waits.
  const at::Tensor source = tensor.is_pinned() ? tensor : tensor.pin_memory();
  return source.to(compute.device, /*non_blocking=*/true);
}

at::Tensor empty_for_upload(at::IntArrayRef sizes, at::ScalarType dtype, const Compute& compute) {
  return at::empty(sizes, at::TensorOptions(dtype).pinned_memory(compute.on_gpu()));
}

ComputeScope::ComputeScope(const Compute& compute)
    : device_(compute.device.type()),
      was_enabled_(at::autocast::is_autocast_enabled(device_)),
      previous_type_(at::autocast::get_autocast_dtype(device_)) {
  at::autocast::set_autocast_enabled(device_, is_half(compute.precision));
  if (is_half(compute.precision))
    at::autocast::set_autocast_dtype(
        device_, compute.precision == Precision::kBf16 ? at::kBFloat16 : at::kHalf);
}

ComputeScope::~ComputeScope() {
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_type_);
}

}  // namespace linescan
