// How the parameters of a selective scan start.
#pragma once

#include <torch/torch.h>

#include <string_view>

namespace linescan {

// v0: A = 1..states, time steps log-uniform in [0.001, 0.1]; v0_constant: the same with a constant
// weight; v1: normal; v2: A = 1, uniform.
enum class ScanInit { kV0, kV0Constant, kV1, kV2 };
ScanInit parse_scan_init(std::string_view name);

struct ScanParameters {
  at::Tensor x_proj_weight;   // [groups, dt_rank + 2 states, channels]
  at::Tensor dt_proj_weight;  // [groups, channels, dt_rank]
  at::Tensor dt_proj_bias;    // [groups, channels]
  at::Tensor A_log;           // [groups * channels, states]
  at::Tensor D;               // [groups * channels]
};

// Draws from PyTorch's generator; x_proj_weight is U(-b, b) with b = 1 / sqrt(channels) and D is 1
// in every variant.
ScanParameters make_scan_parameters(ScanInit init, int64_t groups, int64_t channels, int64_t states,
                                    int64_t dt_rank);

// Biases whose softplus is a time step drawn log-uniformly between 0.001 and 0.1.
at::Tensor log_uniform_step_biases(at::IntArrayRef sizes);

}  // namespace linescan
