#include "linescan/models/layers/scan_init.h"

#include <cmath>

#include "linescan/models/layers/choice.h"

namespace linescan {
namespace {

constexpr Choice<ScanInit> kInits[] = {{"v0", ScanInit::kV0},
                                       {"v0_constant", ScanInit::kV0Constant},
                                       {"v1", ScanInit::kV1},
                                       {"v2", ScanInit::kV2}};

constexpr double kSmallestStep = 1e-3, kLargestStep = 0.1, kFloor = 1e-4;
constexpr double kSimpleScale = 0.1;  // of v1 and v2

}  // namespace

at::Tensor log_uniform_step_biases(at::IntArrayRef sizes) {
  const double low = std::log(kSmallestStep), high = std::log(kLargestStep);
  const at::Tensor step = at::empty(sizes).uniform_(low, high).exp_().clamp_min_(kFloor);
  return step + at::log(-at::expm1(-step));  // softplus^-1
}

ScanInit parse_scan_init(std::string_view name) { return read_choice(kInits, "ssm_init", name); }

ScanParameters make_scan_parameters(ScanInit init, int64_t groups, int64_t channels, int64_t states,
                                    int64_t dt_rank) {
  const double x_bound = 1 / std::sqrt(static_cast<double>(channels));
  const double dt_bound = 1 / std::sqrt(static_cast<double>(dt_rank));
  const std::vector<int64_t> weight_sizes = {groups, channels, dt_rank};
  const std::vector<int64_t> A_sizes = {groups * channels, states};

  ScanParameters parameters;
  parameters.x_proj_weight =
      at::empty({groups, dt_rank + 2 * states, channels}).uniform_(-x_bound, x_bound);
  parameters.D = at::ones({groups * channels});
  switch (init) {
    case ScanInit::kV1:
      parameters.dt_proj_weight = at::randn(weight_sizes) * kSimpleScale;
      parameters.dt_proj_bias = at::randn({groups, channels}) * kSimpleScale;
      parameters.A_log = at::randn(A_sizes);
      break;
    case ScanInit::kV2:
      parameters.dt_proj_weight = at::rand(weight_sizes) * kSimpleScale;
      parameters.dt_proj_bias = at::rand({groups, channels}) * kSimpleScale;
      parameters.A_log = at::zeros(A_sizes);
      break;
    default:
      parameters.dt_proj_weight = init == ScanInit::kV0
                                      ? at::empty(weight_sizes).uniform_(-dt_bound, dt_bound)
                                      : at::full(weight_sizes, dt_bound);
      parameters.dt_proj_bias = log_uniform_step_biases({groups, channels});
      parameters.A_log =
          at::arange(1, states + 1, at::kFloat).log_().repeat({groups * channels, 1});
  }
  return parameters;
}

}  // namespace linescan
