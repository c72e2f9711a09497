// causal_conv1d for LibTorch programs; the same operators as torch.ops.linescan.* in Python.
// Formulas and gradients: linescan/ops/causal_conv1d/README.md.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace linescan {

// x [batch, length, channels]; weight [channels, width] with width 2 to 4, the newest token's last, and
// bias [channels], of any floating type; initial_state [sequences, channels, width - 1], in the type
// of x, the newest last. cu_seqlens [sequences + 1], int32 or int64, packs sequences along the length
// of a batch of one; without it every batch item is a sequence. SiLU behind it if `silu`. Returns (out
// like x, final_state). Differentiable in every floating tensor, final_state included. Throws
// c10::Error that names the argument, what was got and what was expected.
std::tuple<at::Tensor, at::Tensor> causal_conv1d(
    const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias = {},
    const std::optional<at::Tensor>& initial_state = {},
    const std::optional<at::Tensor>& cu_seqlens = {}, bool silu = true);

// One token: x, result [batch, channels]. Advances state [batch, channels, width - 1] in place. Not
// differentiable.
at::Tensor causal_conv1d_step(const at::Tensor& x, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, at::Tensor& state,
                              bool silu = true);

}  // namespace linescan
