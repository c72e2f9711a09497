#include "linescan/binding/tensors.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/ostream.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "linescan/base/error.h"

namespace linescan {

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kDouble:
      return DType::kFloat64;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

at::ScalarType torch_type(DType type) {
  switch (type) {
    case DType::kFloat64:
      return at::kDouble;
    case DType::kFloat16:
      return at::kHalf;
    case DType::kBFloat16:
      return at::kBFloat16;
    default:
      return at::kFloat;
  }
}

namespace {

// None from Python arrives as an undefined tensor.
void expect_given(std::string_view op, std::string_view argument, const at::Tensor& tensor) {
  if (!tensor.defined())
    throw_error<InvalidArgument>("{}: {} is None, expected a tensor", op, argument);
}

}  // namespace

TensorView view_of(std::string_view op, std::string_view argument, const at::Tensor& tensor) {
  expect_given(op, argument, tensor);
  const std::optional<DType> dtype = dtype_of(tensor.scalar_type());
  if (!dtype)
    throw_error<InvalidArgument>("{}: {} is {}, expected float32, float16, bfloat16 or float64", op,
                                 argument, c10::toString(tensor.scalar_type()));
  if (tensor.dim() > Shape::kMaxRank)
    throw_error<InvalidArgument>("{}: {} has {} dimensions, expected at most {}", op, argument,
                                 tensor.dim(), Shape::kMaxRank);
  TensorView view;
  view.data = tensor.is_meta() ? nullptr : tensor.data_ptr();  // shapes without data
  view.dtype = *dtype;
  for (int64_t size : tensor.sizes()) view.shape.push_back(size);
  for (int64_t stride : tensor.strides()) view.strides.push_back(stride);
  view.defined = true;
  return view;
}

TensorView view_of(std::string_view op, std::string_view argument,
                   const std::optional<at::Tensor>& tensor) {
  return tensor && tensor->defined() ? view_of(op, argument, *tensor) : TensorView{};
}

void expect_device(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                   c10::Device expected) {
  expect_given(op, argument, tensor);
  if (tensor.device() == expected) return;
  throw_error<InvalidArgument>("{}: {} is on {}, expected {}", op, argument, tensor.device().str(),
                               expected.str());
}

void expect_devices(
    std::string_view op, c10::Device expected,
    std::initializer_list<std::pair<const char*, std::optional<at::Tensor>>> tensors) {
  for (const auto& [argument, tensor] : tensors)
    if (given(tensor)) expect_device(op, argument, *tensor, expected);
}

bool is_differentiated(std::initializer_list<at::Tensor> tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) {
    return tensor.defined() && ((at::GradMode::is_enabled() && tensor.requires_grad()) ||
                                tensor._fw_grad(/*level=*/0).defined());
  });
}

bool sizes_known(std::initializer_list<std::optional<at::Tensor>> tensors) {
  for (const std::optional<at::Tensor>& tensor : tensors)
    if (given(tensor) && tensor->unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return false;
  return true;
}

at::Tensor empty_as(const at::Tensor& tensor, at::ScalarType dtype) {
  return at::empty_like(tensor, tensor.options().dtype(dtype));
}

void count_version(const at::Tensor& written) { torch::autograd::impl::bump_version(written); }

void expect_sizes(std::string_view op, const char* argument, const at::Tensor& tensor,
                  at::IntArrayRef expected) {
  if (tensor.sizes() != expected)
    throw_error<InvalidArgument>("{}: {} has shape {}, expected {}", op, argument,
                                 fmt::streamed(tensor.sizes()), fmt::streamed(expected));
}

at::Tensor gradient_like(const std::optional<at::Tensor>& tensor, const at::Tensor& beside) {
  return tensor && tensor->defined() ? at::empty_like(*tensor) : at::empty({0}, beside.options());
}

ParallelFor torch_parallel_for() {
  return [](int64_t count, const ParallelBody& body) { at::parallel_for(0, count, 1, body); };
}

}  // namespace linescan
