#include "linescan/binding/ss2d_by_scans.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <vector>

#include "linescan/base/math.h"
#include "linescan/binding/gpu_scans.h"
#include "linescan/binding/tensors.h"
#include "linescan/ops/selective_scan/gpu_plan.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan {
namespace {

using at::Tensor;

constexpr std::string_view kName = "ss2d_scan";
constexpr int64_t kFewestStates = 4;
// Of what grows with the batch: smaller parts would not fill a GPU, least of all with many states, whose
// values at the starts of tiles take most of it.
constexpr int64_t kWorkspaceGoal = int64_t{1280} << 20, kManyStatesGoal = int64_t{2048} << 20;

TensorView view(const Tensor& tensor) { return view_of(kName, "a scan's tensor", tensor); }

// The pixel of every step of every route [K, length]. Made on the device: nothing is waited for.
Tensor pixels_of_steps(at::IntArrayRef routes, int64_t height, int64_t width, const Tensor& like) {
  const Tensor numbers = at::arange(height * width, like.options().dtype(at::kInt));
  std::vector<Tensor> pixels;
  for (int64_t code : routes) {
    std::vector<int64_t> reversed;
    if (code & kReverseLines) reversed.push_back(0);
    if (code & kReverseInLine) reversed.push_back(1);
    const Tensor plane = numbers.view({height, width});
    pixels.push_back((code & kColumnMajor ? plane.t() : plane).flip(reversed).flatten());
  }
  return at::stack(pixels);
}

// [images, channels, height, width] -> [images, channels, pixels], neighbouring channels.
Tensor rows_of(const Tensor& planes) {
  return planes.contiguous(at::MemoryFormat::ChannelsLast).flatten(2);
}

// The problem, seen as one of selective_scan with K * channels channels in K groups.
struct Problem {
  Tensor dt_weight;  // [K R, K channels]: block k, k is dt_weight[k] transposed
  Tensor A, D, dt_bias, order;
  int64_t channels, pixels, routes, rank, states;

  Problem(const Tensor& x, const Tensor& projection, const Tensor& weight, const Tensor& bias,
          const Tensor& A_log, const Tensor& D_in, at::IntArrayRef codes)
      : A(at::exp(A_log.contiguous()).neg()),
        D(D_in.contiguous()),
        dt_bias(bias.flatten().contiguous()),
        order(pixels_of_steps(codes, x.size(2), x.size(3), x)),
        channels(x.size(1)),
        pixels(x.size(2) * x.size(3)),
        routes(static_cast<int64_t>(codes.size())),
        rank(weight.size(2)),
        states(A_log.size(1)) {
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
  // A number for every pixel, route and channel of a part; `seen` as the scan sees it.
  Tensor numbers(int64_t images, at::TensorOptions options) const {
    return at::empty({images, pixels, routes, channels}, options);
  }
  Tensor seen(const Tensor& numbers) const { return numbers.flatten(2).transpose(1, 2); }
  // The records (dts, B, C) of a part [images, pixels, K, R + 2 N], and B or C of them, as the scan sees it.
  Tensor records(const Tensor& projection) const {
    return projection.view({projection.size(0), pixels, routes, rank + 2 * states});
  }
  Tensor factor(const Tensor& records, int which) const {
    return records.narrow(3, rank + which * states, states).permute({0, 2, 3, 1});
  }
};

// The scan of one part of the batch.
struct Part {
  Tensor u, dts, delta, B, C;  // dts [images * pixels, K R], delta [images, pixels, K, channels]
  SelectiveScanProblem scan;

  Part(const Problem& p, const Tensor& x, const Tensor& projection) : u(rows_of(x)) {
    const Tensor records = p.records(projection);
    dts = records.narrow(3, 0, p.rank).reshape({x.size(0) * p.pixels, p.routes * p.rank});
    delta = at::matmul(dts, p.dt_weight).view({x.size(0), p.pixels, p.routes, p.channels});
    B = p.factor(records, 0);
    C = p.factor(records, 1);
    scan.u = view(u);
    scan.delta = view(p.seen(delta));
    scan.A = view(p.A);
    scan.B = view(B);
    scan.C = view(C);
    scan.D = view(p.D);
    scan.delta_bias = view(p.dt_bias);
    scan.delta_softplus = true;
    scan.order = p.order.data_ptr<int32_t>();
  }
};

bool can_scan(int64_t states, at::IntArrayRef routes) {
  return states >= kFewestStates &&
         std::none_of(routes.begin(), routes.end(), [](int64_t code) { return code & kRestart; });
}

}  // namespace

bool scans_pay(const Ss2dSize& size, at::IntArrayRef routes, const Gpu& gpu) {
  // Either pass walks states if one does.
  return can_scan(size.states, routes) && !plan(size, Pass::kForward, gpu).walks_states;
}

bool scans_pay(const Ss2dProblem& problem, const Gpu& gpu) {
  const at::IntArrayRef routes(problem.routes, static_cast<std::size_t>(problem.route_count));
  const Ss2dSize size = size_of(problem);
  const bool packed = has_aligned_pairs(problem) && problem.dt_weight.dtype == problem.x.dtype;
  return packed ? scans_pay(size, routes, gpu) : can_scan(size.states, routes);
}

// Equal parts of the batch with a workspace of up to these many bytes: forward delta and the routes'
// results; backward delta, the gradient of u, and the states at the starts of tiles, a float a number.
SelectiveScanSize scan_of_part(const Ss2dSize& size, Pass pass) {
  const int64_t element = static_cast<int64_t>(size_of(size.dtype)), state = sizeof(float);
  const int64_t number = pass == Pass::kForward
                             ? element + static_cast<int64_t>(size_of(accumulator_of(size.dtype)))
                             : 2 * element + ceil_div(size.states * state, int64_t{kGpuItems});
  const int64_t image = number * size.routes * size.channels * size.pixels();
  const int64_t goal = size.states > kChunkStates ? kManyStatesGoal : kWorkspaceGoal;
  const int64_t most = std::max<int64_t>(1, goal / std::max<int64_t>(1, image));
  const int64_t parts = std::max<int64_t>(1, ceil_div(size.batch, most));
  return {.batch = ceil_div(size.batch, parts),
          .channels = size.routes * size.channels,
          .groups = size.routes,
          .length = size.pixels(),
          .states = size.states,
          .dtype = size.dtype,
          // Results are summed over the routes in the states' type; gradients come in the result's.
          .out_dtype = pass == Pass::kForward ? accumulator_of(size.dtype) : size.out_dtype,
          .softplus = true,
          .length_last = false,
          .ordered = true};
}

Tensor ss2d_by_scans(const Tensor& x, const Tensor& projection, const Tensor& dt_weight,
                     const Tensor& dt_bias, const Tensor& A_log, const Tensor& D,
                     at::IntArrayRef routes, at::ScalarType out_dtype) {
  const Problem p(x, projection, dt_weight, dt_bias, A_log, D, routes);
  const Tensor out = empty_as(x, out_dtype);
  const int64_t most = p.part(x, Pass::kForward);
  for (int64_t first = 0; first < x.size(0); first += most) {
    const int64_t images = std::min(most, x.size(0) - first);
    Part part(p, x.narrow(0, first, images), projection.narrow(0, first, images));
    const Tensor y = p.numbers(images, p.A.options());
    part.scan.out = view(p.seen(y));
    gpu_scans().forward(part.scan, x);
    out.narrow(0, first, images).flatten(2).transpose(1, 2).copy_(y.sum(2));
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> ss2d_by_scans_backward(
    const Tensor& grad_out, const Tensor& x, const Tensor& projection, const Tensor& dt_weight,
    const Tensor& dt_bias, const Tensor& A_log, const Tensor& D, at::IntArrayRef routes) {
  const Problem p(x, projection, dt_weight, dt_bias, A_log, D, routes);
  const Tensor gx = empty_as(x, x.scalar_type());
  const Tensor gprojection = at::empty_like(projection);
  const Tensor gA = at::zeros_like(p.A), gD = at::zeros_like(p.D),
               gbias = at::zeros_like(p.dt_bias),
               gweight = at::zeros({p.routes * p.rank, p.routes * p.channels}, p.A.options());
  const Tensor part_A = at::empty_like(gA), part_D = at::empty_like(gD),
               part_bias = at::empty_like(gbias);
  const int64_t most = p.part(x, Pass::kBackward);
  for (int64_t first = 0; first < x.size(0); first += most) {
    const int64_t images = std::min(most, x.size(0) - first);
    Part part(p, x.narrow(0, first, images), projection.narrow(0, first, images));
    const Tensor upstream = rows_of(grad_out.narrow(0, first, images));
    const Tensor gu = p.numbers(images, x.options());
    const Tensor grecords = p.records(gprojection.narrow(0, first, images));
    SelectiveScanGradients gradients;
    gradients.out = view(upstream);
    part.scan.out = gradients.out;  // its type: the plan asks the problem for it
    gradients.u = view(p.seen(gu));
    gradients.delta = part.scan.delta;  // in its place: every step is read before it is written
    gradients.A = view(part_A);
    gradients.B = view(p.factor(grecords, 0));
    gradients.C = view(p.factor(grecords, 1));
    gradients.D = view(part_D);
    gradients.delta_bias = view(part_bias);
    gpu_scans().backward(part.scan, gradients, x);
    gx.narrow(0, first, images).flatten(2).transpose(1, 2).copy_(gu.sum(2));
    gA.add_(part_A);
    gD.add_(part_D);
    gbias.add_(part_bias);
    const Tensor gdelta = part.delta.view({images * p.pixels, p.routes * p.channels});
    gweight.add_(at::matmul(part.dts.t(), gdelta));
    grecords.narrow(3, 0, p.rank)
        .copy_(at::matmul(gdelta, p.dt_weight.t()).view({images, p.pixels, p.routes, p.rank}));
  }
  const Tensor blocks = gweight.view({p.routes, p.rank, p.routes, p.channels});
  const Tensor gdt_weight = at::empty_like(dt_weight);
  for (int64_t k = 0; k < p.routes; ++k)
    gdt_weight.select(0, k).copy_(blocks.select(0, k).select(1, k).t());
  return {gx, gprojection, gdt_weight, gbias.view_as(dt_bias), gA.mul(p.A), gD};
}

}  // namespace linescan
