// Where a network computes and in which numbers: the device, autocast, and the TF32 switch.
//
// Parameters are float32 everywhere. bf16 and fp16 let autocast run products, convolutions and scans
// in the half type; fp32 on a GPU means true float32 products, tf32 lets them round to 10 bits of
// fraction.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

namespace linescan {

enum class Precision { kFp32, kTf32, kBf16, kFp16 };

struct Compute {
  at::Device device = at::kCPU;
  Precision precision = Precision::kFp32;

  bool on_gpu() const { return device.is_cuda(); }
};

// "fp32", "tf32", "bf16", "fp16"
Precision parse_precision(std::string_view name);
std::string_view name_of(Precision precision);

// `device` is "cpu", "cuda" (the first GPU) or "cuda:N". A GPU becomes the current one, with the
// operators for it loaded and a stream of this program's own, on which CUDA graphs can be recorded.
// Must come first: LibTorch looks for GPUs once, at the latest at torch::manual_seed or a backward
// pass, and then for good.
// Throws InvalidArgument for unknown names, Unsupported where there is no such GPU, no code for it,
// or no such precision on the device.
Compute open_compute(std::string_view device, std::string_view precision = "fp32");

// "cpu", or the GPU's name: what decides the last bits of results.
std::string describe(const Compute& compute);

// `tensor` on the device. From the CPU to a GPU through page-locked memory, without waiting.
at::Tensor to_device(const at::Tensor& tensor, const Compute& compute);
// An empty tensor on the CPU that to_device() moves without another copy.
at::Tensor empty_for_upload(at::IntArrayRef sizes, at::ScalarType dtype, const Compute& compute);

// Autocast as the precision wants it, for as long as the object lives. Weights are cast once in that
// time; a change of them in between is not seen.
class ComputeScope {
 public:
  explicit ComputeScope(const Compute& compute);
  ~ComputeScope();
  ComputeScope(const ComputeScope&) = delete;
  ComputeScope& operator=(const ComputeScope&) = delete;

 private:
  at::DeviceType device_;
  bool was_enabled_;
  at::ScalarType previous_type_;
};

}  // namespace linescan
