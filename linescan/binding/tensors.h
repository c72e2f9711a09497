// Between LibTorch's tensors and the operators' views. Only binding/ knows both.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "linescan/base/tensor_view.h"
#include "linescan/ops/parallel.h"

namespace linescan {

// Nothing for a type that operators do not know.
std::optional<DType> dtype_of(at::ScalarType type);
at::ScalarType torch_type(DType type);

// The view of a tensor as it lies; the tensor must outlive it. Throws InvalidArgument naming `op`
// and `argument` if the type is none that operators know (complex, integer) or the rank exceeds
// Shape::kMaxRank.
TensorView view_of(std::string_view op, std::string_view argument, const at::Tensor& tensor);
TensorView view_of(std::string_view op, std::string_view argument,
                   const std::optional<at::Tensor>& tensor);

// Throws InvalidArgument unless `tensor` is where `expected` is.
void expect_device(std::string_view op, std::string_view argument, const at::Tensor& tensor,
                   c10::Device expected);
// The same for several arguments by name, of which some may be absent.
void expect_devices(
    std::string_view op, c10::Device expected,
    std::initializer_list<std::pair<const char*, std::optional<at::Tensor>>> tensors);

// Whether the sizes of all tensors, absent ones left out, are numbers. Sizes that are symbols cannot be
// checked while tracing; the kernel checks them when it runs.
bool sizes_known(std::initializer_list<std::optional<at::Tensor>> tensors);

// Whether an optional tensor is there: callers pass nothing, or an undefined one.
inline bool given(const std::optional<at::Tensor>& tensor) { return tensor && tensor->defined(); }
// The other way round, for tensors that autograd has saved.
inline std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// The same, contiguous.
inline std::optional<at::Tensor> contiguous(const std::optional<at::Tensor>& tensor) {
  return given(tensor) ? std::optional(tensor->contiguous()) : std::nullopt;
}

// Whether autograd, backward or forward, has to see a call with these tensors; they may be undefined.
bool is_differentiated(std::initializer_list<at::Tensor> tensors);

// Tells autograd that an operator has written to the tensor: a backward pass that has saved what it was before
// refuses to run.
void count_version(const at::Tensor& written);

inline at::Tensor or_undefined(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

// Throws InvalidArgument naming `op` and `argument` unless the sizes are these.
void expect_sizes(std::string_view op, const char* argument, const at::Tensor& tensor,
                  at::IntArrayRef expected);

// The type of parameters, statistics and states beside data.
inline at::ScalarType parameter_type(const at::Tensor& data) {
  return data.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// A new tensor like `tensor`: same sizes, and its strides if they are dense, else contiguous ones.
at::Tensor empty_as(const at::Tensor& tensor, at::ScalarType dtype);
// Like an optional input; a tensor of no elements stands for an absent one, because operators that
// torch.compile traces cannot return undefined tensors.
at::Tensor gradient_like(const std::optional<at::Tensor>& tensor, const at::Tensor& beside);

// PyTorch's own threads.
ParallelFor torch_parallel_for();

}  // namespace linescan
