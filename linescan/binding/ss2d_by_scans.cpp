#include "linescan/binding/ss2d_by_scans.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_embedding_bag_forward_only.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "linescan/base/math.h"
#include "linescan/binding/tensors.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

constexpr int64_t kFewestStates = 4;
constexpr int64_t kWorkspaceGoal = int64_t{256} << 20;

// Where the routes' steps lie, as indices into rows: `pixels` [length * K] of step t of route k, its
// pixel, `pixel_rows` its pixel and route; `step_rows` [pixels * K] of a pixel, its step and route.
// Made on the device: nothing is waited for.
struct RouteOrder {
  Tensor pixels, pixel_rows, step_rows;

  RouteOrder(at::IntArrayRef routes, int64_t height, int64_t width, const Tensor& like) {
    const auto options = like.options().dtype(at::kLong);
    const Tensor numbers = at::arange(height * width, options);
    std::vector<Tensor> pixel_of_step, step_of_pixel;
    for (int64_t code : routes) {
      const bool columns = code & kColumnMajor;
      std::vector<int64_t> reversed;
      if (code & kReverseLines) reversed.push_back(0);
      if (code & kReverseInLine) reversed.push_back(1);
      const auto turned = [&](const Tensor& plane) { return columns ? plane.t() : plane; };
      pixel_of_step.push_back(turned(numbers.view({height, width})).flip(reversed).flatten());
      const Tensor steps = numbers.view({columns ? width : height, columns ? height : width});
      step_of_pixel.push_back(turned(steps.flip(reversed)).flatten());
    }
    const auto count = static_cast<int64_t>(routes.size());
    const Tensor route = at::arange(count, options);
    const Tensor pixel = at::stack(pixel_of_step, 1);  // [length, K]
    pixels = pixel.flatten();
    pixel_rows = pixel.mul(count).add_(route).flatten();
    step_rows = at::stack(step_of_pixel, 1).mul_(count).add_(route).flatten();
  }
};

// The problem, seen as one of selective_scan with K * channels channels in K groups.
struct Problem {
  Tensor dt_weight;  // [K R, K channels]: block k, k is dt_weight[k] transposed
  Tensor A, D, dt_bias;
  int64_t channels, pixels, routes, rank, states, record;
  RouteOrder order;

  Problem(const Tensor& x, const Tensor& projection, const Tensor& weight, const Tensor& bias,
          const Tensor& A_log, const Tensor& D_in, at::IntArrayRef codes)
      : A(at::exp(A_log).neg()),
        D(D_in),
        dt_bias(bias.flatten()),
        channels(x.size(1)),
        pixels(x.size(2) * x.size(3)),
        routes(static_cast<int64_t>(codes.size())),
        rank(weight.size(2)),
        states(A_log.size(1)),
        record(rank + 2 * states),
        order(codes, x.size(2), x.size(3), x) {
    dt_weight = at::zeros({routes, rank, routes, channels}, projection.options());
    for (int64_t k = 0; k < routes; ++k)
      dt_weight.select(0, k).select(1, k).copy_(weight.select(0, k).t());
    dt_weight = dt_weight.view({routes * rank, routes * channels});
  }

  // Images of a part of the batch.
  int64_t part(const Tensor& x, Pass pass) const {
    return scan_of_part({.batch = x.size(0),
                         .channels = channels,
                         .height = x.size(2),
                         .width = x.size(3),
                         .states = states,
                         .rank = rank,
                         .routes = routes,
                         .dtype = *dtype_of(x.scalar_type())},
                        pass)
        .batch;
  }
};

// planes [images, channels, height, width] -> [images, K * channels, length] with neighbouring channels.
Tensor along_routes(const Problem& p, const Tensor& planes) {
  const Tensor rows = planes.flatten(2).transpose(1, 2);  // [images, pixels, channels]
  return rows.index_select(1, p.order.pixels)
      .view({planes.size(0), p.pixels, p.routes * p.channels})
      .transpose(1, 2);
}

// The other way, summed over the routes in their order, into planes.
void merge(const Problem& p, const Tensor& scanned, const Tensor& planes) {
  const int64_t images = scanned.size(0), rows = p.pixels * p.routes;
  const Tensor table = scanned.transpose(1, 2).reshape({images * rows, p.channels});
  const auto options = p.order.step_rows.options();
  const Tensor first = at::arange(images, options).mul_(rows).unsqueeze(1);
  const Tensor indices = first.add(p.order.step_rows).flatten();
  const Tensor bags = at::arange(images * p.pixels, options).mul_(p.routes);
  const Tensor sums = std::get<0>(at::_embedding_bag_forward_only(table, indices, bags));
  planes.view({images, p.channels, p.pixels})
      .transpose(1, 2)
      .copy_(sums.view({images, p.pixels, p.channels}));
}

// What the scan of one part of the batch is given.
struct Inputs {
  Tensor u, delta, B,
      C;       // u, delta [images, K * channels, length]; B, C [images, K, states, length]
  Tensor dts;  // [images * length, K * rank]

  Inputs(const Problem& p, const Tensor& x, const Tensor& projection) {
    const int64_t images = x.size(0);
    u = along_routes(p, x);
    const Tensor records = projection.view({images, p.pixels * p.routes, p.record})
                               .index_select(1, p.order.pixel_rows)
                               .view({images, p.pixels, p.routes, p.record});
    dts = records.narrow(3, 0, p.rank).reshape({images * p.pixels, p.routes * p.rank});
    delta = at::matmul(dts, p.dt_weight)
                .view({images, p.pixels, p.routes * p.channels})
                .transpose(1, 2);
    const auto factor = [&](int64_t first) {
      return records.narrow(3, first, p.states).permute({0, 2, 3, 1}).contiguous();
    };
    B = factor(p.rank);
    C = factor(p.rank + p.states);
  }
};

using ScanForward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                               const Tensor&, const Tensor&, const OptionalTensor&,
                                               const OptionalTensor&, const OptionalTensor&,
                                               const OptionalTensor&, bool,
                                               std::optional<at::ScalarType>);
using ScanGradients =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using ScanBackward = ScanGradients(const OptionalTensor&, const OptionalTensor&, const Tensor&,
                                   const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                   const OptionalTensor&, const OptionalTensor&,
                                   const OptionalTensor&, const OptionalTensor&, bool,
                                   const OptionalTensor&);

}  // namespace

bool scans_pay(int64_t states, at::IntArrayRef routes) {
  return states >= kFewestStates &&
         std::none_of(routes.begin(), routes.end(), [](int64_t code) { return code & kRestart; });
}

// Equal parts of the batch whose permuted copies take up to kWorkspaceGoal bytes.
SelectiveScanSize scan_of_part(const Ss2dSize& size, Pass pass) {
  const int64_t copies = pass == Pass::kForward ? 4 : 6, channels = size.routes * size.channels;
  const int64_t image =
      copies * channels * size.pixels() * static_cast<int64_t>(size_of(size.dtype));
  const int64_t most = std::max<int64_t>(1, kWorkspaceGoal / std::max<int64_t>(1, image));
  const int64_t parts = std::max<int64_t>(1, ceil_div(size.batch, most));
  return {.batch = ceil_div(size.batch, parts),
          .channels = channels,
          .groups = size.routes,
          .length = size.pixels(),
          .states = size.states,
          .dtype = size.dtype,
          // Results are summed over the routes in the states' type; gradients come in the result's.
          .out_dtype = pass == Pass::kForward ? accumulator_of(size.dtype) : size.out_dtype,
          .softplus = true,
          .length_last = false};
}

Tensor ss2d_by_scans(const Tensor& x, const Tensor& projection, const Tensor& dt_weight,
                     const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                     at::IntArrayRef routes, at::ScalarType out_dtype) {
  static const auto scan = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::selective_scan", "")
                               .typed<ScanForward>();
  const Problem p(x, projection, dt_weight, dt_bias, A_log, D, routes);
  const Tensor out = empty_as(x, out_dtype);
  // The routes' results are summed in the type of the states.
  const int64_t part = p.part(x, Pass::kForward);
  for (int64_t first = 0; first < x.size(0); first += part) {
    const int64_t images = std::min(part, x.size(0) - first);
    const Inputs in(p, x.narrow(0, first, images), projection.narrow(0, first, images));
    const Tensor y = std::get<0>(scan.call(in.u, in.delta, p.A, in.B, in.C, p.D, {}, p.dt_bias, {},
                                           true, p.A.scalar_type()));
    merge(p, y, out.narrow(0, first, images));
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> ss2d_by_scans_backward(
    const Tensor& grad_out, const Tensor& x, const Tensor& projection, const Tensor& dt_weight,
    const Tensor& dt_bias, const Tensor& A_log, const Tensor& D, at::IntArrayRef routes) {
  static const auto backward = c10::Dispatcher::singleton()
                                   .findSchemaOrThrow("linescan::selective_scan_backward", "")
                                   .typed<ScanBackward>();
  const Problem p(x, projection, dt_weight, dt_bias, A_log, D, routes);
  const Tensor gx = empty_as(x, x.scalar_type());
  const Tensor gprojection = at::empty_like(projection);
  const auto parameter = p.A.options();
  const Tensor gA = at::zeros_like(p.A), gD = at::zeros_like(p.D),
               gbias = at::zeros_like(p.dt_bias),
               gweight = at::zeros({p.routes * p.rank, p.routes * p.channels}, parameter);
  const int64_t part = p.part(x, Pass::kBackward);
  for (int64_t first = 0; first < x.size(0); first += part) {
    const int64_t images = std::min(part, x.size(0) - first);
    const Inputs in(p, x.narrow(0, first, images), projection.narrow(0, first, images));
    const Tensor gy = along_routes(p, grad_out.narrow(0, first, images));
    const auto [gu, gdelta, part_A, gB, gC, part_D, unused_z, part_bias, unused_state] =
        backward.call(gy, {}, in.u, in.delta, p.A, in.B, in.C, p.D, {}, p.dt_bias, {}, true, {});
    merge(p, gu, gx.narrow(0, first, images));
    gA.add_(part_A);
    gD.add_(part_D);
    gbias.add_(part_bias);
    const Tensor steps = gdelta.transpose(1, 2).reshape({images * p.pixels, p.routes * p.channels});
    gweight.add_(at::matmul(in.dts.t(), steps));
    const Tensor gdts =
        at::matmul(steps, p.dt_weight.t()).view({images, p.pixels, p.routes, p.rank});
    const Tensor records = at::cat({gdts, gB.permute({0, 3, 1, 2}), gC.permute({0, 3, 1, 2})}, 3);
    gprojection.narrow(0, first, images)
        .view({images, p.pixels * p.routes, p.record})
        .copy_(records.view({images, p.pixels * p.routes, p.record})
                   .index_select(1, p.order.step_rows));
  }
  const Tensor blocks = gweight.view({p.routes, p.rank, p.routes, p.channels});
  const Tensor gdt_weight = at::empty_like(dt_weight);
  for (int64_t k = 0; k < p.routes; ++k)
    gdt_weight.select(0, k).copy_(blocks.select(0, k).select(1, k).t());
  return {gx, gprojection, gdt_weight, gbias.view_as(dt_bias), gA.mul(p.A), gD};
}

}  // namespace linescan
