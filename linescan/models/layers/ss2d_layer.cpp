#include "linescan/models/layers/ss2d_layer.h"

#include "linescan/binding/depthwise_conv.h"
#include "linescan/models/layers/dense.h"
#include "linescan/models/layers/part.h"
#include "linescan/ops/ss2d/route.h"

namespace linescan {
namespace {

constexpr int64_t kReverse = kReverseInLine | kReverseLines;

constexpr int64_t kCross[] = {0, kColumnMajor, kReverse, kReverse | kColumnMajor};
constexpr int64_t kOne[] = {0, 0, 0, 0};
constexpr int64_t kTwo[] = {0, 0, kReverse, kReverse};
constexpr int64_t kRotated[] = {0, kColumnMajor | kReverseLines, kReverse,
                                kColumnMajor | kReverseInLine};

at::IntArrayRef route_codes(Routes routes) {
  switch (routes) {
    case Routes::kOne:
      return kOne;
    case Routes::kTwo:
      return kTwo;
    case Routes::kRotated:
      return kRotated;
    default:
      return kCross;
  }
}

torch::nn::Conv2d depthwise(int64_t channels, int64_t kernel, bool bias) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, channels, kernel)
                               .padding(kernel / 2)
                               .groups(channels)
                               .bias(bias));
}

bool is_half(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
}

// A depthwise convolution, with SiLU behind it if `silu`. On a GPU the 3x3 kernel, which all published
// networks have, is ours.
at::Tensor convolve_depthwise(torch::nn::Conv2d& convolution, const at::Tensor& x, bool silu) {
  if (x.is_cuda() && convolution->weight.size(2) == 3)
    return depthwise_conv(x, convolution->weight, convolution->bias, silu);
  const at::Tensor y = convolve(convolution, x);
  return silu ? activate(y, Activation::kSilu) : y;
}

at::Tensor plain_layer_norm(const at::Tensor& x) {
  return at::layer_norm(x, {x.size(-1)}, {}, {}, kNormEpsilon);
}

}  // namespace

Ss2dLayerImpl::Ss2dLayerImpl(const Ss2dOptions& options) : options_(options) {
  const int64_t inner = options.inner;
  const bool gated = options.type.gate != Gate::kNone;
  in_proj_ = register_module(
      "in_proj", make_linear(options.channels, gated ? 2 * inner : inner, /*bias=*/false));
  if (options.kernel > 1)
    convolution_ = register_module("conv2d", depthwise(inner, options.kernel, options.conv_bias));

  ScanParameters initial =
      make_scan_parameters(options.init, kRouteGroups, inner, options.states, options.dt_rank);
  scan_parameters_ = {register_parameter("x_proj_weight", initial.x_proj_weight),
                      register_parameter("dt_projs_weight", initial.dt_proj_weight),
                      register_parameter("dt_projs_bias", initial.dt_proj_bias),
                      register_parameter("A_logs", initial.A_log),
                      register_parameter("Ds", initial.D)};

  // The published code keeps norm and convolution in a sequence with transpositions between; the
  // places in that sequence are part of the names.
  const auto sequence = [&] {
    return register_module("out_norm", std::make_shared<torch::nn::Module>());
  };
  switch (options.type.out_norm) {
    case OutNorm::kLayerNorm:
      out_norm_ = register_module("out_norm", Norm(NormKind::kLayer, inner));
      break;
    case OutNorm::kDepthwise:
      out_convolution_ = sequence()->register_module("1", depthwise(inner, 3, /*bias=*/false));
      break;
    case OutNorm::kLayerNormDepthwise: {
      const auto place = sequence();
      out_norm_ = place->register_module("0", Norm(NormKind::kLayer, inner));
      out_convolution_ = place->register_module("2", depthwise(inner, 3, /*bias=*/false));
      break;
    }
    default:
      break;
  }
  out_proj_ = register_module("out_proj", make_linear(inner, options.channels, /*bias=*/false));
}

at::Tensor Ss2dLayerImpl::scan_routes(const at::Tensor& u, at::IntArrayRef routes,
                                      int64_t first_group) {
  const auto& [x_weight, dt_weight, dt_bias, A_log, D] = scan_parameters_;
  const int64_t groups = static_cast<int64_t>(routes.size()), inner = options_.inner;
  // The scan sums in float32 either way; a float32 scan hands its result on as it is. Otherwise it is
  // rounded on a GPU before it is stored: half the traffic, and half of what is kept for the norm's
  // backward pass.
  const bool wide = is_half(u) && (options_.type.float32_scan || !u.is_cuda());
  const auto out_dtype = wide ? std::make_optional(at::kFloat) : std::nullopt;
  if (groups == kRouteGroups)
    return channels_last(
        ss2d_along(options_.path, channels_second(u), scan_parameters_, routes, out_dtype));
  return channels_last(ss2d_along(
      options_.path, channels_second(u),
      {x_weight.narrow(0, first_group, groups), dt_weight.narrow(0, first_group, groups),
       dt_bias.narrow(0, first_group, groups), A_log.narrow(0, first_group * inner, groups * inner),
       D.narrow(0, first_group * inner, groups * inner)},
      routes, out_dtype));
}

// Both directions of every line on its own: rows, or columns with column_bit set.
at::Tensor Ss2dLayerImpl::scan_lines(const at::Tensor& u, int64_t column_bit, int64_t first_group) {
  const int64_t forward = kRestart | column_bit, backward = forward | kReverseInLine;
  if (!options_.authors_cascade) return scan_routes(u, {forward, backward}, first_group);
  const int64_t along = column_bit ? 1 : 2;
  return scan_routes(u, {forward}, first_group) +
         scan_routes(u, {backward}, first_group + 1).flip({along});
}

// The norms without parameters keep the second scan's input in range.
at::Tensor Ss2dLayerImpl::cascade(const at::Tensor& u) {
  const at::Tensor rows = scan_lines(plain_layer_norm(u), 0, 0);
  return scan_lines(plain_layer_norm(rows), kColumnMajor, kRouteGroups / 2);
}

at::Tensor Ss2dLayerImpl::scan(const at::Tensor& u) {
  const PartScope part(Part::kScan);
  if (options_.type.routes == Routes::kCascade) return cascade(u);
  return scan_routes(u, route_codes(options_.type.routes), 0);
}

at::Tensor Ss2dLayerImpl::normalise(const at::Tensor& y) {
  switch (options_.type.out_norm) {
    case OutNorm::kSoftmax:  // over the positions of a channel
      return at::softmax(y.flatten(1, 2), 1).view_as(y);
    case OutNorm::kSigmoid:
      return activate(y, Activation::kSigmoid);
    default: {
      const at::Tensor normed = out_norm_ ? out_norm_->forward(y) : y;
      return out_convolution_ ? convolve_depthwise(out_convolution_, normed, /*silu=*/false)
                              : normed;
    }
  }
}

at::Tensor Ss2dLayerImpl::convolved(const at::Tensor& u) {
  if (!convolution_) return activate(u, options_.activation);
  const bool silu = options_.activation == Activation::kSilu;
  const at::Tensor y = convolve_depthwise(convolution_, u, silu);
  return silu ? y : activate(y, options_.activation);
}

at::Tensor Ss2dLayerImpl::mix(const at::Tensor& x) {
  const at::Tensor& weight = in_proj_->weight;
  const bool gated = options_.type.gate != Gate::kNone;
  // With a gate: two products on halves of the weight give two dense results without a copy.
  at::Tensor u = project(x, gated ? weight.narrow(0, 0, options_.inner) : weight, {});
  u = convolved(u);
  at::Tensor y = normalise(scan(u)).to(u.scalar_type());
  if (options_.type.out_gelu) y = activate(y, Activation::kGelu);
  if (!gated) return y;
  at::Tensor z = project(x, weight.narrow(0, options_.inner, options_.inner), {});
  if (options_.type.gate == Gate::kActivated) z = activate(z, options_.activation);
  return y * z;
}

at::Tensor Ss2dLayerImpl::forward(const at::Tensor& x) {
  return at::dropout(project(mix(x), out_proj_->weight, {}), options_.drop, is_training());
}

Branch Ss2dLayerImpl::forward_normed(const at::Tensor& x, Norm& norm) {
  if (options_.type.gate != Gate::kNone) return {forward(norm->forward(x)), x};
  const auto [product, residual] = norm->forward_projected(x, in_proj_->weight, {});
  const at::Tensor u = convolved(product), y = scan(u);
  at::Tensor value;
  if (options_.type.out_norm == OutNorm::kLayerNorm && !options_.type.out_gelu) {
    value = out_norm_->forward_projected(y, out_proj_->weight, {}).result;
  } else {
    const at::Tensor normed = normalise(y).to(u.scalar_type());
    value = project(options_.type.out_gelu ? activate(normed, Activation::kGelu) : normed,
                    out_proj_->weight, {});
  }
  return {at::dropout(value, options_.drop, is_training()), residual};
}

at::Tensor Ss2dLayerImpl::add_to(const at::Tensor& residual, const at::Tensor& x) {
  if (options_.drop > 0 && is_training()) return residual + forward(x);
  return add_projection(residual, mix(x), out_proj_->weight, {});
}

}  // namespace linescan
