// ss2d for LibTorch: schema, tensor -> problem, autograd, registration.
//
// ss2d(x, ...) = one matrix product for the projections of all routes (ATen) followed by
// linescan::ss2d_scan, the operator of ops/ss2d.

#include "linescan/binding/ss2d.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <fmt/ostream.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "linescan/base/error.h"
#include "linescan/binding/autocast.h"
#include "linescan/binding/cpu_plan.h"
#include "linescan/binding/gpu_scans.h"
#include "linescan/binding/ss2d_by_scans.h"
#include "linescan/binding/ss2d_call.h"
#include "linescan/binding/ss2d_projected.h"
#include "linescan/binding/tensors.h"
#include "linescan/ops/ss2d/ss2d.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OutAndStates = std::tuple<Tensor, Tensor>;

// ---- Schema ------------------------------------------------------------------------------------

TORCH_LIBRARY_FRAGMENT(linescan, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "ss2d(Tensor x, Tensor x_proj_weight, Tensor? x_proj_bias, Tensor dt_proj_weight, "
      "Tensor dt_proj_bias, Tensor A_log, Tensor D, int[] routes, ScalarType? out_dtype=None) -> "
      "Tensor",
      tags);
  m.def(
      "ss2d_scan(Tensor x, Tensor projection, Tensor dt_proj_weight, Tensor dt_proj_bias, "
      "Tensor A_log, Tensor D, int[] routes, ScalarType? out_dtype=None, bool keep_states=False, "
      "Tensor? projection_weight=None) -> (Tensor out, Tensor states)",
      tags);
  // projection_weight: projection is x's pixels times it, and that part of x's gradient is wanted too.
  m.def(
      "ss2d_scan_backward(Tensor grad_out, Tensor states, Tensor x, Tensor projection, "
      "Tensor dt_proj_weight, Tensor dt_proj_bias, Tensor A_log, Tensor D, int[] routes, "
      "Tensor? projection_weight=None) -> (Tensor x, Tensor projection, Tensor dt_proj_weight, "
      "Tensor dt_proj_bias, Tensor A_log, "
      "Tensor D)",
      tags);
}

namespace {

constexpr std::string_view kName = Ss2dCall::kName;

void run_forward(const Ss2dProblem& problem, const Tensor& x) {
  if (x.is_cuda()) return gpu_scans().forward(problem, x);
  with_cpu_plan(problem, Pass::kForward, [&](const auto&... how) { forward(problem, how...); });
}

void run_backward(const Ss2dProblem& problem, const Ss2dGradients& gradients, const Tensor& x) {
  if (x.is_cuda()) return gpu_scans().backward(problem, gradients, x);
  with_cpu_plan(problem, Pass::kBackward,
                [&](const auto&... how) { backward(problem, gradients, how...); });
}

OutAndStates scan_device(const Tensor& x, const Tensor& projection, const Tensor& dt_weight,
                         const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                         at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype,
                         bool keep_states, const OptionalTensor&) {
  Ss2dCall call(x, projection, dt_weight, dt_bias, A_log, D, routes);
  if (call.by_scans())
    return {ss2d_by_scans(call.x, call.projection, call.dt_weight, call.dt_bias, call.A_log, call.D,
                          routes, out_dtype.value_or(x.scalar_type())),
            empty_states(call.x, call.dt_weight, A_log, routes, keep_states)};
  const Tensor out = empty_as(call.x, out_dtype.value_or(x.scalar_type()));
  const Tensor states = empty_states(call.x, call.dt_weight, A_log, routes, keep_states);
  call.problem.out = view_of(kName, "out", out);
  call.use_states(states);
  run_forward(call.problem, x);
  return {out, states};
}

void check_projection_weight(const OptionalTensor& weight, const Tensor& x,
                             const Tensor& projection) {
  if (!given(weight)) return;
  expect_devices(kName, x.device(), {{"projection_weight", *weight}});
  expect_sizes(kName, "projection_weight", *weight, {projection.size(2), x.size(1)});
}

// gx += the gradient of x's projection, in the place of gx: one pass over it less than a sum of two gradients.
void add_projection_gradient(Tensor& gx, const Tensor& gprojection, const OptionalTensor& weight) {
  if (!given(weight)) return;
  const int64_t pixels = gx.size(0) * gx.size(2) * gx.size(3);
  const Tensor rows = gx.permute({0, 2, 3, 1});
  const Tensor of_projection = gprojection.view({pixels, gprojection.size(2)});
  if (rows.is_contiguous()) {
    Tensor sum = rows.view({pixels, gx.size(1)});
    at::addmm_out(sum, sum, of_projection, *weight);
  } else {
    gx.add_(at::mm(of_projection, *weight).view(rows.sizes()).permute({0, 3, 1, 2}));
  }
}

Ss2dTensors6 scan_backward_device(const Tensor& grad_out, const Tensor& states, const Tensor& x,
                                  const Tensor& projection, const Tensor& dt_weight,
                                  const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                                  at::IntArrayRef routes, const OptionalTensor& projection_weight) {
  Ss2dCall call(x, projection, dt_weight, dt_bias, A_log, D, routes);
  check_ss2d_gradient(grad_out, states, x);
  check_projection_weight(projection_weight, x, projection);
  if (call.by_scans()) {
    auto results = ss2d_by_scans_backward(grad_out, call.x, call.projection, call.dt_weight,
                                          call.dt_bias, call.A_log, call.D, routes);
    add_projection_gradient(std::get<0>(results), std::get<1>(results), projection_weight);
    return results;
  }
  call.use_states(states);
  Ss2dNewGradients gradients(grad_out, call, empty_rows(projection));
  run_backward(call.problem, gradients.views, x);
  auto& [gx, gprojection, gdt_weight, gdt_bias, gA_log, gD] = gradients.results;
  add_projection_gradient(gx, gprojection, projection_weight);
  return gradients.results;
}

// ---- Meta: shapes without data, for torch.compile ------------------------------------------------

OutAndStates scan_meta(const Tensor& x, const Tensor& projection, const Tensor& dt_weight,
                       const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                       at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype,
                       bool keep_states, const OptionalTensor&) {
  if (sizes_known({x, projection, dt_weight, dt_bias, A_log, D}))
    Ss2dCall(x, projection, dt_weight, dt_bias, A_log, D, routes);
  return {empty_as(x, out_dtype.value_or(x.scalar_type())),
          empty_states(x, dt_weight, A_log, routes, keep_states)};
}

Ss2dTensors6 scan_backward_meta(const Tensor& grad_out, const Tensor& states, const Tensor& x,
                                const Tensor& projection, const Tensor& dt_weight,
                                const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                                at::IntArrayRef routes, const OptionalTensor& projection_weight) {
  if (sizes_known({grad_out, states, x, projection, dt_weight, dt_bias, A_log, D})) {
    Ss2dCall(x, projection, dt_weight, dt_bias, A_log, D, routes);
    check_ss2d_gradient(grad_out, states, x);
    check_projection_weight(projection_weight, x, projection);
  }
  return {empty_as(x, x.scalar_type()), empty_rows(projection), empty_rows(dt_weight),
          empty_rows(dt_bias),          empty_rows(A_log),      empty_rows(D)};
}

// ---- Autograd ----------------------------------------------------------------------------------

const auto& scan_op() {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::ss2d_scan", "")
                             .typed<decltype(scan_device)>();
  return op;
}

class Ss2dScanFunction : public torch::autograd::Function<Ss2dScanFunction> {
 public:
  static torch::autograd::variable_list forward(
      torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& projection,
      const Tensor& dt_weight, const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
      at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype, bool keep_states,
      const OptionalTensor& projection_weight) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [out, states] = scan_op().call(x, projection, dt_weight, dt_bias, A_log, D, routes,
                                        out_dtype, keep_states, projection_weight);
    ctx->save_for_backward({states, x, projection, dt_weight, dt_bias, A_log, D,
                            projection_weight.value_or(Tensor())});
    ctx->saved_data["routes"] = routes.vec();
    ctx->mark_non_differentiable({states});
    ctx->set_materialize_grads(false);  // else zeros as large as the states
    return {out, states};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::ss2d_scan_backward", "")
                               .typed<decltype(scan_backward_device)>();
    if (!grads[0].defined()) return torch::autograd::variable_list(10);
    const auto saved = ctx->get_saved_variables();
    auto [x, projection, dt_weight, dt_bias, A_log, D] =
        op.call(grads[0], saved[0], saved[1], saved[2], saved[3], saved[4], saved[5], saved[6],
                ctx->saved_data["routes"].toIntVector(), optional(saved[7]));
    return {x, projection, dt_weight, dt_bias, A_log, D, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

OutAndStates scan_autograd(const Tensor& x, const Tensor& projection, const Tensor& dt_weight,
                           const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                           at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype,
                           bool keep_states, const OptionalTensor& projection_weight) {
  const auto results = Ss2dScanFunction::apply(x, projection, dt_weight, dt_bias, A_log, D, routes,
                                               out_dtype, keep_states, projection_weight);
  return {results[0], results[1]};
}

// ---- The whole operator ------------------------------------------------------------------------

// In the words of whoever calls it: the scan knows the projection alone.
void check_projection(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                      const Tensor& dt_weight, const Tensor& A_log, at::IntArrayRef routes) {
  if (!x.defined()) throw_error<InvalidArgument>("ss2d: x is None, expected a tensor");
  if (x.dim() != 4)
    throw_error<InvalidArgument>(
        "ss2d: x has {} dimensions, expected [batch, channels, height, width]", x.dim());
  if (weight.dim() != 3 || weight.sym_size(2) != x.sym_size(1))
    throw_error<InvalidArgument>(
        "ss2d: x_proj_weight has shape {}, expected [routes, rank + 2 * states, channels] with the "
        "channels of x",
        fmt::streamed(weight.sym_sizes()));
  if (weight.sym_size(0) != static_cast<int64_t>(routes.size()))
    throw_error<InvalidArgument>(
        "ss2d: x_proj_weight has shape {}, expected {} first, as routes has",
        fmt::streamed(weight.sym_sizes()), routes.size());
  if (dt_weight.dim() == 3 && A_log.dim() == 2 &&
      weight.sym_size(1) != dt_weight.sym_size(2) + 2 * A_log.sym_size(1))
    throw_error<InvalidArgument>(
        "ss2d: x_proj_weight has shape {}, expected [routes, rank + 2 * states, channels] with the "
        "rank {} of dt_proj_weight and the {} states of A_log",
        fmt::streamed(weight.sym_sizes()), fmt::streamed(dt_weight.sym_size(2)),
        fmt::streamed(A_log.sym_size(1)));
  if (bias && bias->defined() &&
      (bias->dim() != 2 || bias->sym_size(0) != weight.sym_size(0) ||
       bias->sym_size(1) != weight.sym_size(1)))
    throw_error<InvalidArgument>(
        "ss2d: x_proj_bias has shape {}, expected [routes, rank + 2 * states] as x_proj_weight",
        fmt::streamed(bias->sym_sizes()));
}

Tensor ss2d_composite(const Tensor& x, const Tensor& x_proj_weight,
                      const OptionalTensor& x_proj_bias, const Tensor& dt_weight,
                      const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                      at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype) {
  check_projection(x, x_proj_weight, x_proj_bias, dt_weight, A_log, routes);
  const Tensor weight = x_proj_weight.flatten(0, 1).to(x.scalar_type());  // [K (R + 2 N), channels]
  const OptionalTensor bias = x_proj_bias && x_proj_bias->defined()
                                  ? OptionalTensor(x_proj_bias->flatten().to(x.scalar_type()))
                                  : std::nullopt;
  const Tensor rows = x.flatten(2).transpose(1, 2);  // [batch, pixels, channels]
  // States are kept where the backward pass wants them: on GPUs, if there will be one.
  const bool keep_states =
      x.is_cuda() && is_differentiated({weight, or_undefined(bias), x, dt_weight});
  if (keep_states && rows.is_contiguous() && projects_again(x, dt_weight, A_log, routes))
    return ss2d_scan_projected(x, weight, bias, dt_weight, dt_bias, A_log, D, routes, out_dtype);
  // The scan's backward pass adds the projection's part of x's gradient where it has the rest.
  const bool adds_up = rows.is_contiguous() && is_differentiated({x});
  Tensor projection;
  if (rows.is_contiguous()) {
    projection = at::linear(adds_up ? rows.detach() : rows, weight, bias);
  } else {  // a batched product reads the planes where they lie; linear would turn them round first
    projection = at::bmm(rows, weight.t().unsqueeze(0).expand_symint(
                                   {x.sym_size(0), weight.sym_size(1), weight.sym_size(0)}));
    if (bias) projection = projection + *bias;
  }
  return std::get<0>(scan_op().call(x, projection, dt_weight, dt_bias, A_log, D, routes, out_dtype,
                                    keep_states,
                                    adds_up ? OptionalTensor(weight.detach()) : std::nullopt));
}

// Autocast casts the data and the projections and leaves the recurrence's parameters in float32.
template <c10::DeviceType kDevice, c10::DispatchKey kKey>
Tensor ss2d_autocast(const Tensor& x, const Tensor& x_proj_weight,
                     const OptionalTensor& x_proj_bias, const Tensor& dt_weight,
                     const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                     at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype) {
  const AutocastArguments<kDevice, kKey> cast;
  return ss2d(cast.data(x), cast.data(x_proj_weight), cast.data(x_proj_bias), cast.data(dt_weight),
              cast.parameter(dt_bias), cast.parameter(A_log), cast.parameter(D), routes, out_dtype);
}

// ---- Registration ------------------------------------------------------------------------------

TORCH_LIBRARY_IMPL(linescan, CompositeImplicitAutograd, m) { m.impl("ss2d", ss2d_composite); }
TORCH_LIBRARY_IMPL(linescan, CPU, m) {
  m.impl("ss2d_scan", scan_device);
  m.impl("ss2d_scan_backward", scan_backward_device);
}
// The kernels' library may be absent or not loaded yet: run_forward() says so then.
TORCH_LIBRARY_IMPL(linescan, CUDA, m) {
  m.impl("ss2d_scan", scan_device);
  m.impl("ss2d_scan_backward", scan_backward_device);
}
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("ss2d_scan", scan_meta);
  m.impl("ss2d_scan_backward", scan_backward_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("ss2d_scan", scan_autograd);
  // Second derivatives: a clear error, never silently zero.
  m.impl("ss2d_scan_backward", torch::autograd::autogradNotImplementedFallback());
}
TORCH_LIBRARY_IMPL(linescan, AutocastCPU, m) {
  m.impl("ss2d", ss2d_autocast<c10::DeviceType::CPU, c10::DispatchKey::AutocastCPU>);
}
TORCH_LIBRARY_IMPL(linescan, AutocastCUDA, m) {
  m.impl("ss2d", ss2d_autocast<c10::DeviceType::CUDA, c10::DispatchKey::AutocastCUDA>);
}

}  // namespace

// ---- C++ interface: through the dispatcher, as from Python ---------------------------------------

Tensor ss2d(const Tensor& x, const Tensor& x_proj_weight, const OptionalTensor& x_proj_bias,
            const Tensor& dt_proj_weight, const Tensor& dt_proj_bias, const Tensor& A_log,
            const Tensor& D, at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("linescan::ss2d", "")
                             .typed<decltype(ss2d_composite)>();
  return op.call(x, x_proj_weight, x_proj_bias, dt_proj_weight, dt_proj_bias, A_log, D, routes,
                 out_dtype);
}

}  // namespace linescan
