// linescan::ss2d_scan_projected: schema, autograd, registration. Its kernels are those of linescan::ss2d_scan.

#include "linescan/binding/ss2d_projected.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>

#include "linescan/base/error.h"
#include "linescan/binding/gpu_scans.h"
#include "linescan/binding/ss2d_by_scans.h"
#include "linescan/binding/ss2d_call.h"
#include "linescan/binding/tensors.h"
#include "linescan/device/gpu.h"

namespace linescan {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using OutAndStates = std::tuple<Tensor, Tensor>;
// Of x, projection_weight, projection_bias (empty without one), dt_proj_weight, dt_proj_bias, A_log, D.
using Gradients7 = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

TORCH_LIBRARY_FRAGMENT(linescan, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag};
  m.def(
      "ss2d_scan_projected(Tensor x, Tensor projection_weight, Tensor? projection_bias, "
      "Tensor dt_proj_weight, Tensor dt_proj_bias, Tensor A_log, Tensor D, int[] routes, "
      "ScalarType? out_dtype=None, bool keep_states=False) -> (Tensor out, Tensor states)",
      tags);
  m.def(
      "ss2d_scan_projected_backward(Tensor grad_out, Tensor states, Tensor x, "
      "Tensor projection_weight, Tensor? projection_bias, Tensor dt_proj_weight, "
      "Tensor dt_proj_bias, Tensor A_log, Tensor D, int[] routes) -> (Tensor x, "
      "Tensor projection_weight, Tensor projection_bias, Tensor dt_proj_weight, "
      "Tensor dt_proj_bias, Tensor A_log, Tensor D)",
      tags);
}

namespace {

using ScanForward = OutAndStates(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&, const Tensor&, at::IntArrayRef,
                                 std::optional<at::ScalarType>, bool, const OptionalTensor&);
using ScanBackward = Ss2dTensors6(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  at::IntArrayRef, const OptionalTensor&);

template <class Function>
auto find_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}

bool has_pixel_rows(const Tensor& planes) { return planes.permute({0, 2, 3, 1}).is_contiguous(); }
// [batch * pixels, channels]: a view if has_pixel_rows().
Tensor pixel_rows(const Tensor& planes) {
  const int64_t pixels = planes.size(0) * planes.size(2) * planes.size(3);
  return planes.permute({0, 2, 3, 1}).reshape({pixels, planes.size(1)});
}

void check_projection(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  constexpr std::string_view kName = Ss2dCall::kName;
  if (x.dim() != 4)
    throw_error<InvalidArgument>(
        "{}: x has {} dimensions, expected [batch, channels, height, width]", kName, x.dim());
  if (weight.dim() != 2)
    throw_error<InvalidArgument>(
        "{}: projection_weight has {} dimensions, expected [routes (rank + 2 states), channels]",
        kName, weight.dim());
  expect_devices(kName, x.device(), {{"projection_weight", weight}, {"projection_bias", bias}});
  expect_sizes(kName, "projection_weight", weight, {weight.size(0), x.size(1)});
  if (given(bias)) expect_sizes(kName, "projection_bias", *bias, {weight.size(0)});
  const auto expect_type_of_x = [&](const char* argument, const Tensor& tensor) {
    if (tensor.scalar_type() != x.scalar_type())
      throw_error<InvalidArgument>("{}: {} is {}, expected {} as x", kName, argument,
                                   c10::toString(tensor.scalar_type()),
                                   c10::toString(x.scalar_type()));
  };
  expect_type_of_x("projection_weight", weight);
  if (given(bias)) expect_type_of_x("projection_bias", *bias);
}

Tensor projection_of(const Tensor& x, const Tensor& weight, const OptionalTensor& bias) {
  return at::linear(pixel_rows(x), weight, bias)
      .view({x.size(0), x.size(2) * x.size(3), weight.size(0)});
}

OutAndStates projected_device(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                              const Tensor& dt_weight, const Tensor& dt_bias, const Tensor& A_log,
                              const Tensor& D, at::IntArrayRef routes,
                              std::optional<at::ScalarType> out_dtype, bool keep_states) {
  static const auto scan = find_operator<ScanForward>("linescan::ss2d_scan");
  check_projection(x, weight, bias);
  at::AutoDispatchBelowADInplaceOrView below;
  return scan.call(x, projection_of(x, weight, bias), dt_weight, dt_bias, A_log, D, routes,
                   out_dtype, keep_states, std::nullopt);
}

// What the projection's part of a backward pass adds up from slice to slice, in float32.
class ProjectionGradients {
 public:
  ProjectionGradients(const Tensor& weight, const OptionalTensor& bias)
      : weight_(weight),
        parts_(at::zeros({std::clamp<int64_t>(kMostNumbers / std::max<int64_t>(weight.numel(), 1),
                                              1, kMostParts),
                          weight.size(0), weight.size(1)},
                         weight.options().dtype(at::kFloat))),
        bias_sum_(given(bias) ? at::zeros(bias->sizes(), bias->options().dtype(at::kFloat))
                              : at::empty({0}, weight.options())) {}

  // Of so many rows: gx += gprojection weight, and the sums of the parameters' gradients.
  void add(Tensor gx, const Tensor& x, const Tensor& gprojection) {
    at::addmm_out(gx, gx, gprojection, weight_);
    // As a batch of products: of many rows and few columns, one alone would leave most of the device idle.
    int64_t parts = parts_.size(0);
    while (x.size(0) % parts != 0) --parts;
    const auto in_parts = [&](const Tensor& rows) {
      return rows.view({parts, rows.size(0) / parts, rows.size(1)});
    };
    Tensor sums = parts_.narrow(0, 0, parts);
    at::baddbmm_out(sums, sums, in_parts(gprojection).transpose(1, 2), in_parts(x), at::kFloat);
    if (bias_sum_.numel() > 0) bias_sum_.add_(gprojection.sum(0, /*keepdim=*/false, at::kFloat));
  }
  Tensor of_weight() const { return parts_.sum(0).to(weight_.scalar_type()); }
  Tensor of_bias() const { return bias_sum_.to(weight_.scalar_type()); }

 private:
  static constexpr int64_t kMostParts = 32, kMostNumbers = int64_t{1} << 20;
  Tensor weight_, parts_, bias_sum_;
};

// The whole batch at once, for those whose backward pass has no slices.
Gradients7 backward_at_once(const Tensor& grad_out, const Tensor& states, const Tensor& x,
                            const Tensor& weight, const OptionalTensor& bias,
                            const Tensor& dt_weight, const Tensor& dt_bias, const Tensor& A_log,
                            const Tensor& D, at::IntArrayRef routes) {
  static const auto scan_backward = find_operator<ScanBackward>("linescan::ss2d_scan_backward");
  at::AutoDispatchBelowADInplaceOrView below;
  auto [gx, gprojection, gdt_weight, gdt_bias, gA_log, gD] =
      scan_backward.call(grad_out, states, x, projection_of(x, weight, bias), dt_weight, dt_bias,
                         A_log, D, routes, weight);
  const Tensor rows = gprojection.flatten(0, 1);
  return {gx,
          at::mm(rows.t(), pixel_rows(x)),
          given(bias) ? rows.sum(0) : at::empty({0}, weight.options()),
          gdt_weight,
          gdt_bias,
          gA_log,
          gD};
}

Gradients7 projected_backward_device(const Tensor& grad_out, const Tensor& states, const Tensor& x,
                                     const Tensor& weight, const OptionalTensor& bias,
                                     const Tensor& dt_weight, const Tensor& dt_bias,
                                     const Tensor& A_log, const Tensor& D, at::IntArrayRef routes) {
  check_projection(x, weight, bias);
  check_ss2d_gradient(grad_out, states, x);
  const auto at_once = [&] {
    return backward_at_once(grad_out, states, x, weight, bias, dt_weight, dt_bias, A_log, D,
                            routes);
  };
  if (!x.is_cuda() || x.numel() == 0 || !has_pixel_rows(x) ||
      !projects_again(x, dt_weight, A_log, routes))
    return at_once();
  Ss2dSize size = gpu_size(x, dt_weight, A_log, routes);
  size.out_dtype = dtype_of(grad_out.scalar_type()).value_or(DType::kFloat32);
  size.kept_states = states.numel() > 0;
  const Ss2dGpuPlan made = plan(size, Pass::kBackward, gpus().at(x.device().index()));
  if (made.pieces > 0) return at_once();

  const int64_t pixels = size.pixels();
  const Tensor projection = at::empty({made.slice, pixels, weight.size(0)}, x.options());
  Ss2dCall call(x, projection, dt_weight, dt_bias, A_log, D, routes, /*of_slice=*/true);
  if (call.by_scans()) return at_once();
  call.use_states(states);
  // The gradient in the projection's place, where nothing but the scan reads that.
  const Tensor gprojection = made.stores_delta ? empty_rows(projection) : projection;
  Ss2dNewGradients gradients(grad_out, call, gprojection);
  gradients.views.projection.shape[0] = size.batch;
  const auto& [gx, unused, gdt_weight, gdt_bias, gA_log, gD] = gradients.results;
  const Tensor x_rows = pixel_rows(call.x), gx_rows = pixel_rows(gx);
  ProjectionGradients sums(weight, bias);
  const auto rows_of = [&](const Tensor& room, int64_t images) {
    return room.narrow(0, 0, images).view({images * pixels, weight.size(0)});
  };
  const Ss2dProjectionSlices slices = {
      .begin =
          [&](int64_t first, int64_t images) {
            Tensor rows = rows_of(projection, images);
            const Tensor x_slice = x_rows.narrow(0, first * pixels, images * pixels);
            given(bias) ? at::addmm_out(rows, *bias, x_slice, weight.t())
                        : at::mm_out(rows, x_slice, weight.t());
          },
      .end =
          [&](int64_t first, int64_t images) {
            sums.add(gx_rows.narrow(0, first * pixels, images * pixels),
                     x_rows.narrow(0, first * pixels, images * pixels),
                     rows_of(gprojection, images));
          }};
  gpu_scans().backward(call.problem, gradients.views, made, slices, x);
  return {gx, sums.of_weight(), sums.of_bias(), gdt_weight, gdt_bias, gA_log, gD};
}

OutAndStates projected_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                            const Tensor& dt_weight, const Tensor&, const Tensor& A_log,
                            const Tensor&, at::IntArrayRef routes,
                            std::optional<at::ScalarType> out_dtype, bool keep_states) {
  if (sizes_known({x, weight, bias})) check_projection(x, weight, bias);
  return {empty_as(x, out_dtype.value_or(x.scalar_type())),
          empty_states(x, dt_weight, A_log, routes, keep_states)};
}

Gradients7 projected_backward_meta(const Tensor& grad_out, const Tensor& states, const Tensor& x,
                                   const Tensor& weight, const OptionalTensor& bias,
                                   const Tensor& dt_weight, const Tensor& dt_bias,
                                   const Tensor& A_log, const Tensor& D, at::IntArrayRef) {
  if (sizes_known({grad_out, states, x, weight, bias})) {
    check_projection(x, weight, bias);
    check_ss2d_gradient(grad_out, states, x);
  }
  return {empty_as(x, x.scalar_type()),
          empty_rows(weight),
          given(bias) ? empty_rows(*bias) : at::empty({0}, weight.options()),
          empty_rows(dt_weight),
          empty_rows(dt_bias),
          empty_rows(A_log),
          empty_rows(D)};
}

class Ss2dScanProjectedFunction : public torch::autograd::Function<Ss2dScanProjectedFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const Tensor& x, const Tensor& weight,
                                                const OptionalTensor& bias, const Tensor& dt_weight,
                                                const Tensor& dt_bias, const Tensor& A_log,
                                                const Tensor& D, at::IntArrayRef routes,
                                                std::optional<at::ScalarType> out_dtype,
                                                bool keep_states) {
    static const auto op =
        find_operator<decltype(projected_device)>("linescan::ss2d_scan_projected");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [out, states] =
        op.call(x, weight, bias, dt_weight, dt_bias, A_log, D, routes, out_dtype, keep_states);
    ctx->save_for_backward({states, x, weight, or_undefined(bias), dt_weight, dt_bias, A_log, D});
    ctx->saved_data["routes"] = routes.vec();
    ctx->mark_non_differentiable({states});
    ctx->set_materialize_grads(false);  // else zeros as large as the states
    return {out, states};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    static const auto op = find_operator<decltype(projected_backward_device)>(
        "linescan::ss2d_scan_projected_backward");
    if (!grads[0].defined()) return torch::autograd::variable_list(10);
    const auto saved = ctx->get_saved_variables();
    const OptionalTensor bias = saved[3].defined() ? OptionalTensor(saved[3]) : std::nullopt;
    auto [x, weight, gbias, dt_weight, dt_bias, A_log, D] =
        op.call(grads[0], saved[0], saved[1], saved[2], bias, saved[4], saved[5], saved[6],
                saved[7], ctx->saved_data["routes"].toIntVector());
    return {x,        weight,  bias ? gbias : Tensor(), dt_weight, dt_bias, A_log, D, Tensor(),
            Tensor(), Tensor()};
  }
};

OutAndStates projected_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                                const Tensor& dt_weight, const Tensor& dt_bias, const Tensor& A_log,
                                const Tensor& D, at::IntArrayRef routes,
                                std::optional<at::ScalarType> out_dtype, bool keep_states) {
  const auto results = Ss2dScanProjectedFunction::apply(x, weight, bias, dt_weight, dt_bias, A_log,
                                                        D, routes, out_dtype, keep_states);
  return {results[0], results[1]};
}

void register_devices(torch::Library& m) {
  m.impl("ss2d_scan_projected", projected_device);
  m.impl("ss2d_scan_projected_backward", projected_backward_device);
}

TORCH_LIBRARY_IMPL(linescan, CPU, m) { register_devices(m); }
TORCH_LIBRARY_IMPL(linescan, CUDA, m) { register_devices(m); }
TORCH_LIBRARY_IMPL(linescan, Meta, m) {
  m.impl("ss2d_scan_projected", projected_meta);
  m.impl("ss2d_scan_projected_backward", projected_backward_meta);
}
TORCH_LIBRARY_IMPL(linescan, Autograd, m) {
  m.impl("ss2d_scan_projected", projected_autograd);
  // Second derivatives: a clear error, never silently zero.
  m.impl("ss2d_scan_projected_backward", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

bool projects_again(const Tensor& x, const Tensor& dt_weight, const Tensor& A_log,
                    at::IntArrayRef routes) {
  if (A_log.dim() != 2 || dt_weight.dim() != 3) return false;
  const Ss2dSize size = gpu_size(x, dt_weight, A_log, routes);
  return size.states > 1 && gpu_kept_states(size) > 0;
}

Tensor ss2d_scan_projected(const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                           const Tensor& dt_weight, const Tensor& dt_bias, const Tensor& A_log,
                           const Tensor& D, at::IntArrayRef routes,
                           std::optional<at::ScalarType> out_dtype) {
  static const auto op = find_operator<decltype(projected_device)>("linescan::ss2d_scan_projected");
  return std::get<0>(op.call(x, weight, bias, dt_weight, dt_bias, A_log, D, routes, out_dtype,
                             /*keep_states=*/true));
}

}  // namespace linescan
