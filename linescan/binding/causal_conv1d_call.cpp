#include "linescan/binding/causal_conv1d_call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ostream.h>

#include "linescan/base/error.h"
#include "linescan/binding/tensors.h"
#include "linescan/ops/expect.h"

namespace linescan {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr const char *kName = "causal_conv1d", *kStepName = "causal_conv1d_step";

// Offsets as the kernels want them, on the same device; nothing waits for their values.
Tensor to_offsets(const Tensor& cu_seqlens) {
  const bool integer =
      cu_seqlens.scalar_type() == at::kInt || cu_seqlens.scalar_type() == at::kLong;
  if (cu_seqlens.dim() != 1 || cu_seqlens.size(0) < 1 || !integer)
    throw_error<InvalidArgument>("{}: cu_seqlens is {}, expected [sequences + 1] of int32 or int64",
                                 kName,
                                 fmt::format("{} {}", c10::toString(cu_seqlens.scalar_type()),
                                             fmt::streamed(cu_seqlens.sizes())));
  return cu_seqlens.to(at::kLong).contiguous();
}

}  // namespace

CausalConv1dCall::CausalConv1dCall(const Tensor& x, const Tensor& weight_in,
                                   const OptionalTensor& bias_in,
                                   const OptionalTensor& initial_state,
                                   const OptionalTensor& cu_seqlens, bool silu, const char* op,
                                   const char* state) {
  problem.x = view_of(op, "x", x);
  const auto expect_here = [&](std::string_view argument, const Tensor& tensor) {
    expect_device(op, argument, tensor, x.device());
    return tensor;
  };
  const auto parameter = [&](std::string_view argument, const Tensor& tensor) {
    view_of(op, argument, expect_here(argument, tensor));  // one of the four types
    return tensor.to(parameter_type(x)).contiguous();
  };
  weight = parameter("weight", weight_in);
  if (given(bias_in)) bias = parameter("bias", *bias_in);
  problem.weight = view_of(op, "weight", weight);
  problem.bias = view_of(op, "bias", optional(bias));
  if (given(initial_state))
    problem.initial_state = view_of(op, state, expect_here(state, *initial_state));
  problem.silu = silu;
  if (given(cu_seqlens)) {
    offsets = to_offsets(expect_here("cu_seqlens", *cu_seqlens));
    // A meta tensor has no memory; any address says that sequences are packed.
    static constexpr int64_t kNowhere = 0;
    problem.offsets = x.is_meta() ? &kNowhere : offsets.const_data_ptr<int64_t>();
    problem.sequences = offsets.size(0) - 1;
  }
  check(problem, op, state);
}

CausalConv1dBackwardCall::CausalConv1dBackwardCall(const OptionalTensor& grad_out_in,
                                                   const OptionalTensor& grad_final_state,
                                                   const Tensor& x, const Tensor& weight_in,
                                                   const OptionalTensor& bias_in,
                                                   const OptionalTensor& initial_state,
                                                   const OptionalTensor& cu_seqlens, bool silu)
    : CausalConv1dCall(x, weight_in, bias_in, initial_state, cu_seqlens, silu) {
  const auto upstream = [&](const char* argument, const OptionalTensor& gradient, Tensor* kept) {
    if (!given(gradient)) return TensorView{};
    expect_device(kName, argument, *gradient, x.device());
    *kept = gradient->to(x.scalar_type());
    return view_of(kName, argument, *kept);
  };
  const auto result = [&](const Tensor& like, Tensor* kept) {
    *kept = at::empty_like(like);
    return view_of(kName, "gradient", *kept);
  };
  if (given(grad_out_in)) expect_sizes(kName, "gradient of out", *grad_out_in, x.sizes());
  if (given(grad_final_state)) {
    const int64_t sequences = given(cu_seqlens) ? cu_seqlens->numel() - 1 : x.size(0);
    expect_sizes(kName, "gradient of final_state", *grad_final_state,
                 {sequences, x.size(2), weight.size(1) - 1});
  }
  gradients.out = upstream("gradient of out", grad_out_in, &grad_out);
  gradients.final_state = upstream("gradient of final_state", grad_final_state, &grad_final);
  gradients.x = result(x, &gx);
  gradients.weight = result(weight, &gweight);
  if (bias.defined()) gradients.bias = result(bias, &gbias);
  if (given(initial_state)) gradients.initial_state = result(*initial_state, &ginitial);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> CausalConv1dBackwardCall::results(
    const Tensor& weight_in, const OptionalTensor& bias_in) const {
  const Tensor absent = at::empty({0}, gx.options());
  return {gx, gweight.to(weight_in.scalar_type()),
          gbias.defined() ? gbias.to(bias_in->scalar_type()) : absent,
          ginitial.defined() ? ginitial : absent};
}

std::tuple<Tensor, Tensor> causal_conv1d_results(const Tensor& x, const Tensor& weight,
                                                 const OptionalTensor& cu_seqlens) {
  const c10::SymInt sequences = given(cu_seqlens) ? cu_seqlens->sym_size(0) - 1 : x.sym_size(0);
  return {at::empty_like(x),
          at::empty_symint({sequences, x.sym_size(2), weight.sym_size(1) - 1}, x.options())};
}

Tensor one_token(const Tensor& x) {
  if (x.dim() != 2)
    throw_error<InvalidArgument>("{}: x has {} dimensions, expected [batch, channels]", kStepName,
                                 x.dim());
  return x.unsqueeze(1);
}

CausalConv1dCall causal_conv1d_step_call(const Tensor& x, const Tensor& weight,
                                         const OptionalTensor& bias, const Tensor& state,
                                         bool silu) {
  if (!state.defined())
    throw_error<InvalidArgument>("{}: state is None, expected a tensor", kStepName);
  CausalConv1dCall call(one_token(x), weight, bias, state, {}, silu, kStepName, "state");
  expect_own_places(kStepName, "state", call.problem.initial_state);
  call.problem.final_state = call.problem.initial_state;
  return call;
}

}  // namespace linescan
