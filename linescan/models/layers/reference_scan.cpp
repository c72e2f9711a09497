#include "linescan/models/layers/reference_scan.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "linescan/base/error.h"
#include "linescan/binding/selective_scan.h"
#include "linescan/binding/ss2d.h"
#include "linescan/models/layers/choice.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan {
namespace {

constexpr Choice<ScanPath> kPaths[] = {
    {"fused", ScanPath::kFused}, {"einsum", ScanPath::kEinsum}, {"copies", ScanPath::kCopies}};

std::vector<int64_t> flipped_dims(int64_t route) {
  std::vector<int64_t> dims;
  if (route & kReverseLines) dims.push_back(2);
  if (route & kReverseInLine) dims.push_back(3);
  return dims;
}

// The pixels of x [batch, channels, height, width] in the order of the route: [batch, channels, length].
at::Tensor sequence_of(const at::Tensor& x, int64_t route) {
  const at::Tensor lines = route & kColumnMajor ? x.transpose(2, 3) : x;
  return lines.flip(flipped_dims(route)).flatten(2);
}

// The other way round: a plane like `x` from the results along the route.
at::Tensor plane_of(const at::Tensor& sequence, int64_t route, const at::Tensor& x) {
  const int64_t height = x.size(2), width = x.size(3);
  const bool columns = route & kColumnMajor;
  const at::Tensor lines =
      sequence.view({x.size(0), x.size(1), columns ? width : height, columns ? height : width})
          .flip(flipped_dims(route));
  return columns ? lines.transpose(2, 3) : lines;
}

// What the published code scans in: the type of the einsums, which autocast decides, and where the result
// is to be wider, that one.
at::ScalarType scan_type(const at::Tensor& product, std::optional<at::ScalarType> out_dtype) {
  return out_dtype.value_or(product.scalar_type());
}

at::Tensor scan_copies(const at::Tensor& x, const ScanParameters& parameters,
                       at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype) {
  const auto& [x_weight, dt_weight, dt_bias, A_log, D] = parameters;
  const int64_t batch = x.size(0), K = static_cast<int64_t>(routes.size()), channels = x.size(1),
                length = x.size(2) * x.size(3), rank = dt_weight.size(2), states = A_log.size(1);
  std::vector<at::Tensor> sequences;
  for (const int64_t route : routes) {
    if (route & kRestart)
      throw_error<Unsupported>("scan_path is copies; routes that restart at every line need fused");
    sequences.push_back(sequence_of(x, route));
  }
  const at::Tensor u = at::stack(sequences, 1);  // [batch, K, channels, length]
  const at::Tensor record = at::einsum("bkcl,krc->bkrl", {u, x_weight});
  const std::vector<at::Tensor> parts = record.split_with_sizes({rank, states, states}, 2);
  const at::Tensor delta = at::einsum("bkrl,kcr->bkcl", {parts[0], dt_weight});
  const at::ScalarType type = scan_type(delta, out_dtype);
  const at::Tensor y = std::get<0>(
      selective_scan(u.view({batch, K * channels, length}).to(type),
                     delta.reshape({batch, K * channels, length}).to(type), -A_log.exp(),
                     parts[1].to(type).contiguous(), parts[2].to(type).contiguous(), D, {},
                     dt_bias.flatten(), {}, /*delta_softplus=*/true, out_dtype));
  const std::vector<at::Tensor> results = y.view({batch, K, channels, length}).unbind(1);
  at::Tensor sum;
  for (int64_t k = 0; k < K; ++k) {
    const at::Tensor plane = plane_of(results[k], routes[k], x);
    sum = sum.defined() ? sum + plane : plane;
  }
  return sum.contiguous(x.suggest_memory_format());
}

using ScanOperator = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&,
                                                        const at::Tensor&, const at::Tensor&,
                                                        const at::Tensor&, const at::Tensor&,
                                                        at::IntArrayRef,
                                                        std::optional<at::ScalarType>, bool,
                                                        const std::optional<at::Tensor>&);

at::Tensor scan_einsum(const at::Tensor& x, const ScanParameters& parameters,
                       at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype) {
  static const auto scan = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("linescan::ss2d_scan", "")
                               .typed<ScanOperator>();
  const auto& [x_weight, dt_weight, dt_bias, A_log, D] = parameters;
  std::vector<at::Tensor> records;  // [batch, length, record] each
  for (int64_t k = 0; k < static_cast<int64_t>(routes.size()); ++k)
    records.push_back(at::einsum("bcl,rc->blr", {x.flatten(2), x_weight[k]}));
  at::Tensor projection = at::cat(records, 2);
  // The operator knows nothing of autocast, whose type the einsums have by now.
  const at::ScalarType type = scan_type(projection, out_dtype);
  projection = projection.to(type);
  const bool keep_states = x.is_cuda() && at::GradMode::is_enabled();
  return std::get<0>(scan.call(x.to(type), projection, dt_weight.to(type), dt_bias, A_log, D,
                               routes, out_dtype, keep_states, std::nullopt));
}

}  // namespace

ScanPath parse_scan_path(std::string_view name) { return read_choice(kPaths, "scan_path", name); }

at::Tensor ss2d_along(ScanPath path, const at::Tensor& x, const ScanParameters& parameters,
                      at::IntArrayRef routes, std::optional<at::ScalarType> out_dtype) {
  const auto& [x_weight, dt_weight, dt_bias, A_log, D] = parameters;
  switch (path) {
    case ScanPath::kCopies:
      return scan_copies(x, parameters, routes, out_dtype);
    case ScanPath::kEinsum:
      return scan_einsum(x, parameters, routes, out_dtype);
    default:
      return ss2d(x, x_weight, {}, dt_weight, dt_bias, A_log, D, routes, out_dtype);
  }
}

}  // namespace linescan
