#include "linescan/binding/ss2d_call.h"

#include <ATen/ops/empty.h>

#include "linescan/binding/ss2d_by_scans.h"
#include "linescan/binding/tensors.h"
#include "linescan/device/gpu.h"

namespace linescan {

using at::Tensor;

Tensor with_even_rows(const Tensor& plane) {
  if (plane.dim() != 4 || plane.size(2) <= 1 || plane.stride(2) == plane.size(3) * plane.stride(3))
    return plane;
  return plane.contiguous(plane.suggest_memory_format());
}

Ss2dCall::Ss2dCall(const Tensor& x_in, const Tensor& projection_in, const Tensor& dt_weight_in,
                   const Tensor& dt_bias_in, const Tensor& A_log_in, const Tensor& D_in,
                   at::IntArrayRef routes_in, bool of_slice)
    : x(with_even_rows(x_in)),
      projection(projection_in.contiguous()),
      dt_weight(dt_weight_in.contiguous()),
      dt_bias(dt_bias_in.contiguous()),
      A_log(A_log_in.contiguous()),
      D(D_in.contiguous()),
      routes(routes_in.begin(), routes_in.end()) {
  const auto view = [&](const char* argument, const Tensor& tensor) {
    expect_device(kName, argument, tensor, x.device());
    return view_of(kName, argument, tensor);
  };
  problem.x = view("x", x);
  problem.projection = view("projection", projection);
  if (of_slice) problem.projection.shape[0] = problem.x.shape[0];
  problem.dt_weight = view("dt_proj_weight", dt_weight);
  problem.dt_bias = view("dt_proj_bias", dt_bias);
  problem.A_log = view("A_log", A_log);
  problem.D = view("D", D);
  problem.routes = routes.data();
  problem.route_count = static_cast<int64_t>(routes.size());
  check(problem);
}

void Ss2dCall::use_states(const Tensor& states) {
  if (states.numel() == 0) return;
  expect_sizes(kName, "states", states, {gpu_kept_states(size_of(problem))});
  problem.states = view_of(kName, "states", states);
}

bool Ss2dCall::by_scans() const {
  return x.is_cuda() && scans_pay(problem, gpus().at(x.device().index()));
}

Ss2dNewGradients::Ss2dNewGradients(const Tensor& grad_out, const Ss2dCall& call,
                                   const Tensor& gprojection)
    : upstream(with_even_rows(grad_out)),
      results(empty_as(call.x, call.x.scalar_type()), gprojection, empty_rows(call.dt_weight),
              empty_rows(call.dt_bias), empty_rows(call.A_log), empty_rows(call.D)) {
  const auto view = [](const Tensor& tensor) {
    return view_of(Ss2dCall::kName, "gradient", tensor);
  };
  const auto& [gx, unused, gdt_weight, gdt_bias, gA_log, gD] = results;
  views = {view(upstream), view(gx),     view(gprojection), view(gdt_weight),
           view(gdt_bias), view(gA_log), view(gD)};
}

void check_ss2d_gradient(const Tensor& grad_out, const Tensor& states, const Tensor& x) {
  expect_devices(Ss2dCall::kName, x.device(), {{"grad_out", grad_out}, {"states", states}});
  expect_sizes(Ss2dCall::kName, "grad_out", grad_out, x.sizes());
}

Ss2dSize gpu_size(const Tensor& x, const Tensor& dt_weight, const Tensor& A_log,
                  at::IntArrayRef routes) {
  const auto known = [](const c10::SymInt& number) {
    return number.guard_int(__FILE__, __LINE__);  // while tracing: this size only
  };
  return {.batch = known(x.sym_size(0)),
          .channels = known(x.sym_size(1)),
          .height = known(x.sym_size(2)),
          .width = known(x.sym_size(3)),
          .states = known(A_log.sym_size(1)),
          .rank = known(dt_weight.sym_size(2)),
          .routes = static_cast<int64_t>(routes.size()),
          .dtype = dtype_of(x.scalar_type()).value_or(DType::kFloat32),
          .channels_last = known(x.sym_stride(1)) == 1 || known(x.sym_size(1)) == 1};
}

Tensor empty_states(const Tensor& x, const Tensor& dt_weight, const Tensor& A_log,
                    at::IntArrayRef routes, bool keep) {
  const int64_t count = keep ? gpu_kept_states(gpu_size(x, dt_weight, A_log, routes)) : 0;
  return at::empty({count}, A_log.options());
}

Tensor empty_rows(const Tensor& tensor) {
  return at::empty_symint(tensor.sym_sizes(), tensor.options());
}

}  // namespace linescan
